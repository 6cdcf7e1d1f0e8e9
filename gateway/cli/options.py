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
from gateway.cli.failure import interruptible
from gateway.cli.local import access, local_settings
from gateway.cli.model_names import complete_model
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
