"""bulkhead config reload"""

from __future__ import annotations

import click
import msgspec
from msgspec import Struct

from gateway.cli.client import GatewayClient
from gateway.cli.options import json_option, reaches_gateway
from gateway.cli.printable import printable


class Reloaded(Struct, frozen=True):
    """The gateway's answer."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: dict[str, tuple[str, ...]]
    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]


@click.command("reload")
@json_option
@reaches_gateway
def command(gateway: GatewayClient, *, as_json: bool) -> None:
    """Let the gateway read its configuration again.

    Only what has changed is touched. A file with mistakes changes nothing.
    """
    content = gateway.reload()
    if as_json:
        click.echo(msgspec.json.format(content, indent=2))
        return
    reloaded = gateway.read(content, Reloaded)
    lines = [
        *(f"added {each}" for each in reloaded.added),
        *(f"removed {each}" for each in reloaded.removed),
        *(f"changed {name}: {', '.join(keys)}" for name, keys in reloaded.changed.items()),
        *(f"changed {key}" for key in reloaded.applied),
        *(f"{key} takes a restart of the gateway" for key in reloaded.needs_restart),
    ]
    for line in lines or ["nothing has changed"]:
        click.echo(printable(line))
