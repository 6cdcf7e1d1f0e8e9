"""bulkhead restart"""

from __future__ import annotations

import click

from gateway.cli.bodies import Order
from gateway.cli.client import GatewayClient
from gateway.cli.options import model_argument, reaches_gateway
from gateway.cli.orders import give_order


@click.command("restart")
@model_argument
@click.option("--force", is_flag=True, help="Don't wait for running answers.")
@reaches_gateway
def command(gateway: GatewayClient, *, model: str, force: bool) -> None:
    """Unload a model, load it again in a new process, and wait until it is ready.

    Running answers get the configured drain_s to end.
    """
    give_order(gateway, "restart", model, Order(force=force))
