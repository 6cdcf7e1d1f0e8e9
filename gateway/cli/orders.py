"""What load, unload, restart and kill have in common."""

from __future__ import annotations

import click

from gateway.cli.bodies import ModelReading, Order
from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError
from gateway.cli.printable import printable
from gateway.cli.progress import Progress
from gateway.config.sizes import format_size


def give_order(gateway: GatewayClient, verb: str, model_id: str, order: Order) -> None:
    """Send the order, show what happens until it is carried out, and print the outcome."""
    try:
        with Progress(gateway, model_id):
            content = gateway.order(verb, model_id, order)
    except KeyboardInterrupt:
        click.echo(f"bulkhead: Not waiting any longer; the {verb} goes on.", err=True)
        raise
    model = gateway.read(content, ModelReading)
    if model.state == "stopping":
        raise CommandError(f"{_outcome(model)}: its process has not ended yet.")
    click.echo(_outcome(model))


def _outcome(model: ModelReading) -> str:
    worker = model.worker
    if worker is None:
        return f"{printable(model.id)} is {model.state}"
    held = worker.footprint_bytes
    footprint = "" if held is None else f", {format_size(held)}"
    return f"{printable(model.id)} is {model.state} (pid {worker.pid}{footprint})"
