"""Arguments and options that several verbs share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec

import click
import httpx

from gateway.cli.client import GatewayClient
from gateway.cli.failure import interruptible

DEFAULT_URL: Final = "http://127.0.0.1:8642"

Arguments = ParamSpec("Arguments")

model_argument = click.argument("model", metavar="MODEL")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the gateway's JSON.")


def reaches_gateway(
    verb: Callable[Concatenate[GatewayClient, Arguments], None],
) -> Callable[..., None]:
    """Give a verb the options that name a gateway, and the client that they make."""

    @click.option(
        "--url",
        envvar="BULKHEAD_URL",
        default=DEFAULT_URL,
        callback=_check_url,
        help=f"Address of the gateway [BULKHEAD_URL, {DEFAULT_URL}].",
    )
    @click.option(
        "--admin-key",
        envvar="BULKHEAD_ADMIN_KEY",
        callback=_check_key,
        help="The operator's key [BULKHEAD_ADMIN_KEY].",
    )
    @functools.wraps(verb)
    def with_client(
        url: str, admin_key: str | None, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> None:
        with interruptible(), GatewayClient(url, admin_key) as gateway:
            verb(gateway, *args, **kwargs)

    return with_client


def _check_url(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    try:
        url = httpx.URL(text)
        valid = url.scheme in ("http", "https") and bool(url.host)
    except httpx.InvalidURL:
        valid = False
    if not valid:
        raise click.BadParameter(f"{text!r} is not an address such as {DEFAULT_URL}.")
    return text.rstrip("/")


def _check_key(_context: click.Context, _parameter: click.Parameter, key: str | None) -> str | None:
    if key is not None and not (key.isascii() and key.isprintable()):
        raise click.BadParameter("A key is one line of printable ASCII.")
    return key
