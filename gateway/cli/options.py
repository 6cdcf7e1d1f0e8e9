"""Arguments and options that several verbs share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, Final, ParamSpec

import click
import httpx
from click.core import ParameterSource

from gateway.cli.client import GatewayClient
from gateway.cli.completion import complete_model
from gateway.cli.failure import interruptible
from gateway.cli.local import access, local_settings
from gateway.config.settings import Flags
from gateway.system.state_file import read_secret

Arguments = ParamSpec("Arguments")

_SEEN: Final = (
    "Others on this machine can read --admin-key in the list of processes: give --admin-key-file "
    "or BULKHEAD_ADMIN_KEY instead."
)

model_argument = click.argument("model", metavar="MODEL", shell_complete=complete_model)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the gateway's JSON.")


def reaches_gateway(
    verb: Callable[Concatenate[GatewayClient, Arguments], None],
) -> Callable[..., None]:
    """Give a verb the options that name a gateway, and the client that they make."""

    @click.option(
        "--url",
        envvar="BULKHEAD_URL",
        callback=_check_url,
        help="Address of the gateway [BULKHEAD_URL, that of this machine's gateway].",
    )
    @click.option(
        "--admin-key",
        envvar="BULKHEAD_ADMIN_KEY",
        callback=_check_key,
        help="The operator's key, which others on this machine see in the list of processes "
        "[BULKHEAD_ADMIN_KEY, the one in the state folder].",
    )
    @click.option(
        "--admin-key-file",
        type=click.Path(path_type=Path),
        callback=_read_key,
        help="A file with the operator's key, which others may not read.",
    )
    @functools.wraps(verb)
    def with_client(
        url: str | None,
        admin_key: str | None,
        admin_key_file: str | None,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> None:
        source = click.get_current_context().get_parameter_source("admin_key")
        if source is ParameterSource.COMMANDLINE:
            if admin_key_file is not None:
                raise click.UsageError("--admin-key and --admin-key-file: give one of them.")
            click.echo(_SEEN, err=True)
        found = access(url, admin_key_file or admin_key, *local_settings(None))
        with interruptible(), GatewayClient(found.url, found.key, found.trust) as gateway:
            verb(gateway, *args, **kwargs)

    return with_client


def names_gateway() -> bool:
    """Whether somebody has said which gateway is meant."""
    source = click.get_current_context().get_parameter_source("url")
    return source not in (ParameterSource.DEFAULT, None)


def _check_url(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> str | None:
    if text is None:
        return None
    try:
        url = httpx.URL(text)
        valid = url.scheme in ("http", "https") and bool(url.host)
    except httpx.InvalidURL:
        valid = False
    if not valid:
        raise click.BadParameter(f"{text!r} is not an address such as http://127.0.0.1:8642.")
    return text.rstrip("/")


def _read_key(context: click.Context, parameter: click.Parameter, path: Path | None) -> str | None:
    """The key in the file."""
    if path is None:
        return None
    try:
        text = read_secret(path.expanduser()).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise click.BadParameter(
            f"{path}: {reason}. Write the key into a file that only you can read: chmod 600."
        ) from error
    if not text:
        raise click.BadParameter(f"{path} is empty.")
    return _check_key(context, parameter, text)


def _check_key(_context: click.Context, _parameter: click.Parameter, key: str | None) -> str | None:
    if key is not None and not (key.isascii() and key.isprintable()):
        raise click.BadParameter("A key is one line of printable ASCII.")
    return key


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


log_level_option = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
log_to_option = click.option(
    "--log-to",
    type=click.Choice(["stderr", "file"]),
    default="stderr",
    envvar="BULKHEAD_LOG",
    hidden=True,
    help="file: stderr is kept for crashes, as the log of a service is.",
)
