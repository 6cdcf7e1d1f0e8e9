"""bulkhead unload"""

from __future__ import annotations

import click

from gateway.cli.bodies import Order
from gateway.cli.client import GatewayClient
from gateway.cli.options import model_argument, reaches_gateway
from gateway.cli.orders import give_order


@click.command("unload")
@model_argument
@click.option("--hold", is_flag=True, help="Refuse requests until `bulkhead load`.")
@click.option("--force", is_flag=True, help="Don't wait for running answers.")
@reaches_gateway
def command(gateway: GatewayClient, *, model: str, hold: bool, force: bool) -> None:
    """Unload a model, and wait until its process has ended.

    Running answers get the configured drain_s to end. Requests that wait, and later ones, load the
    model again, unless --hold is given.
    """
    give_order(gateway, "unload", model, Order(hold=hold, force=force))
