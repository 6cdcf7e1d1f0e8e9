"""The options that go before the configuration file."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, Final, ParamSpec

import click

from gateway.config.settings import Flags

Arguments = ParamSpec("Arguments")

_OPTIONS: Final = (
    click.option("--config", type=click.Path(path_type=Path), help="TOML file [BULKHEAD_CONFIG]."),
    click.option(
        "--host", help="Address to listen on; others than loopback need API keys [127.0.0.1]."
    ),
    click.option("--port", type=click.IntRange(0, 65535), help="Port; 0 takes a free one [8642]."),
    click.option(
        "--state-dir",
        type=click.Path(path_type=Path),
        help="Folder for lock, sockets and logs [BULKHEAD_STATE_DIR].",
    ),
    click.option(
        "--model",
        "models",
        multiple=True,
        metavar="PATH_OR_REPO[=ID]",
        help="A model folder, a repository in the Hugging Face cache, or demo. Repeatable.",
    ),
    click.option("--memory-budget", metavar="SIZE", help="Bytes, 12GB, 75%, or auto."),
    click.option("--spare", type=click.IntRange(0), help="Workers kept ready for the next load."),
)


def takes_flags(
    verb: Callable[Concatenate[Flags, Arguments], None],
) -> Callable[..., None]:
    """Give a verb these options, as one `Flags`."""

    @functools.wraps(verb)
    def with_flags(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        flags = Flags(**{each: kwargs.pop(each) for each in Flags.__struct_fields__})  # type: ignore[arg-type]
        verb(flags, *args, **kwargs)

    return functools.reduce(lambda command, option: option(command), reversed(_OPTIONS), with_flags)
