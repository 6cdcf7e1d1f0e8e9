"""bulkhead load"""

from __future__ import annotations

import click

from gateway.cli.bodies import Order
from gateway.cli.client import GatewayClient
from gateway.cli.options import model_argument, reaches_gateway
from gateway.cli.orders import give_order


@click.command("load")
@model_argument
@reaches_gateway
def command(gateway: GatewayClient, *, model: str) -> None:
    """Load a model now, and wait until it is ready.

    Also ends a hold, and tries again what has failed.
    """
    give_order(gateway, "load", model, Order())
