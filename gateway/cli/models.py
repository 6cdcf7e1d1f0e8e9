"""bulkhead models"""

from __future__ import annotations

import click
import msgspec
from rich.table import Table

from gateway.cli.client import GatewayClient
from gateway.cli.console import stdout_console
from gateway.cli.options import json_option, reaches_gateway
from gateway.cli.printable import printable


@click.command("models")
@json_option
@reaches_gateway
def command(gateway: GatewayClient, *, as_json: bool) -> None:
    """List the models and their states."""
    if as_json:
        click.echo(msgspec.json.format(gateway.models_json(), indent=2))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("model", overflow="fold")
    table.add_column("state", no_wrap=True)
    for model in gateway.models():
        table.add_row(printable(model.id), model.state)
    stdout_console().print(table)
