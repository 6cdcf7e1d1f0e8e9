"""Arguments and options that several verbs have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar

import click
import httpx
from click.core import ParameterSource
from msgspec import Struct

from gateway.cli.client import GatewayClient
from gateway.cli.completion import complete_model
from gateway.cli.failure import WrongUseError
from gateway.cli.gateway_access import find_gateway, local_settings
from gateway.config.settings import Flags
from gateway.system.state_file import read_secret

Arguments = ParamSpec("Arguments")
Gathered = TypeVar("Gathered", bound=Struct)
Verb: TypeAlias = Callable[Concatenate[Gathered, Arguments], None]
Option: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]

_SEEN: Final = (
    "Others on this machine can read --admin-key in the list of processes: use --admin-key-file "
    "or BULKHEAD_ADMIN_KEY instead."
)

model_argument = click.argument("model", metavar="MODEL", shell_complete=complete_model)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the gateway's JSON.")


def reaches_gateway(
    verb: Callable[Concatenate[GatewayClient, Arguments], None],
) -> Callable[..., None]:
    """Give a verb the options that name a gateway, and a client of that gateway."""

    @click.option(
        "--url",
        envvar="BULKHEAD_URL",
        callback=_check_url,
        help="Address of the gateway [BULKHEAD_URL, the address of this machine's gateway].",
    )
    @click.option(
        "--admin-key",
        envvar="BULKHEAD_ADMIN_KEY",
        callback=check_key,
        help="The admin key; others on this machine can see it in the list of processes "
        "[BULKHEAD_ADMIN_KEY, the key in the state folder].",
    )
    @click.option(
        "--admin-key-file",
        type=click.Path(path_type=Path),
        callback=read_key,
        help="A file with the admin key, which others may not read.",
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
                raise click.UsageError("Give either --admin-key or --admin-key-file.")
            click.echo(_SEEN, err=True)
        access = find_gateway(url, admin_key_file or admin_key, *local_settings(None))
        with access.client() as gateway:
            verb(gateway, *args, **kwargs)

    return with_client


NO_MODEL: Final = (
    "The gateway has no model: `bulkhead run` finds one, and `bulkhead serve --model demo` serves "
    "the embedded one."
)


def only_model(gateway: GatewayClient) -> str:
    """The id of the gateway's model, if there is only one.

    Raises:
        WrongUseError: there are several, or none.
    """
    ids = [model.id for model in gateway.models()]
    if not ids:
        raise WrongUseError(NO_MODEL)
    if len(ids) != 1:
        raise WrongUseError(f"Name the model; there are: {', '.join(ids)}.")
    return ids[0]


def names_gateway() -> bool:
    """Whether --url or BULKHEAD_URL names a gateway."""
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


def read_key(context: click.Context, parameter: click.Parameter, path: Path | None) -> str | None:
    """The key in the file, which other accounts may not read."""
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
    return check_key(context, parameter, text)


def check_key(_context: click.Context, _parameter: click.Parameter, key: str | None) -> str | None:
    if key is not None and not (key.isascii() and key.isprintable()):
        raise click.BadParameter("A key is one line of printable ASCII.")
    return key


state_dir_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="The gateway's state folder, if `serve` would use another one.",
)


def gathers(kind: type[Gathered], *options: Option) -> Callable[[Verb[Gathered, Arguments]], Any]:
    """A decorator that gives a verb these options. The first argument of the verb is a struct of
    the type `kind` with their values: its fields have the names of the options.
    """

    def decorated(verb: Verb[Gathered, Arguments]) -> Callable[..., None]:
        @functools.wraps(verb)
        def with_gathered(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
            values = {
                struct_field: kwargs.pop(struct_field) for struct_field in kind.__struct_fields__
            }
            verb(kind(**values), *args, **kwargs)

        command: Callable[..., None] = with_gathered
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


takes_flags: Final = gathers(
    Flags,
    click.option("--config", type=click.Path(path_type=Path), help="TOML file [BULKHEAD_CONFIG]."),
    click.option(
        "--host", help="Address to listen on; beyond loopback it needs API keys [127.0.0.1]."
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
    click.option(
        "--memory-budget",
        metavar="SIZE",
        help="The memory of all workers: bytes, 12GB, 75%, or auto.",
    ),
    click.option("--spare", type=click.IntRange(0), help="Workers kept ready for the next load."),
)


class LogFlags(Struct, frozen=True):
    """The log of a gateway: the least level, and where it goes: `stderr` or `file`."""

    log_level: str
    log_to: str

    @property
    def to_stderr(self) -> bool:
        return self.log_to == "stderr"


takes_log_flags: Final = gathers(
    LogFlags,
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="The least level that is logged.",
    ),
    click.option(
        "--log-to",
        type=click.Choice(["stderr", "file"]),
        default="stderr",
        envvar="BULKHEAD_LOG",
        hidden=True,
        help="file: only crashes go to stderr, as in the log of a service.",
    ),
)
