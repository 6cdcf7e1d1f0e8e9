"""bulkhead kill"""

from __future__ import annotations

import click

from gateway.cli.bodies import Order
from gateway.cli.client import GatewayClient
from gateway.cli.options import model_argument, reaches_gateway
from gateway.cli.orders import give_order_to_kill


@click.command("kill")
@model_argument
@click.option("--force", is_flag=True, help="SIGKILL at once.")
@reaches_gateway
def command(gateway: GatewayClient, *, model: str, force: bool) -> None:
    """End a model's process without waiting for running answers.

    The process is asked to stop, then gets SIGTERM, then SIGKILL; --force begins with the last. On
    macOS a process that is killed with much memory may strand it until the next boot.
    """
    give_order_to_kill(gateway, model, Order(force=force))
