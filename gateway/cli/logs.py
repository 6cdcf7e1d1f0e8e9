"""bulkhead logs"""

from __future__ import annotations

import click

from gateway.cli.client import GatewayClient
from gateway.cli.options import model_argument, reaches_gateway


@click.command("logs")
@model_argument
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until Ctrl-C.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0),
    default=200,
    show_default=True,
    help="How many of the last lines to begin with.",
)
@reaches_gateway
def command(gateway: GatewayClient, *, model: str, follow: bool, lines: int) -> None:
    """Print what a model's workers have printed."""
    if not follow:
        click.echo(gateway.log(model, lines), nl=False)
        return
    with gateway.followed_log(model, lines) as events:
        for event in events:
            if event.kind == "message":
                click.echo(event.data)
