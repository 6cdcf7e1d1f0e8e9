"""What load, unload, restart and kill have in common."""

from __future__ import annotations

from typing import Final

import click

from gateway.cli.bodies import ModelReading, Order
from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError
from gateway.cli.printable import printable
from gateway.cli.progress import Progress
from gateway.system.notation import format_size

_LOADS: Final = ("load", "restart")


def give_order(gateway: GatewayClient, verb: str, model_id: str, order: Order) -> None:
    """Send the order, show what happens until it is carried out, and print the outcome."""
    click.echo(_outcome(_carried_out(gateway, verb, model_id, order)))


def give_order_to_kill(gateway: GatewayClient, model_id: str, order: Order) -> None:
    """Print what became of the process: the model may be loaded again by now."""
    meant = gateway.model(model_id).id
    before = gateway.status().model(meant)
    model = _carried_out(gateway, "kill", model_id, order)
    if before is None or before.worker is None:
        click.echo(f"{_outcome(model)}: there was no worker")
        return
    last = model.last_exit
    how = "" if last is None else f" {last.how}"
    click.echo(f"worker {before.worker.pid} ended{how}; {_outcome(model)}")


def _carried_out(gateway: GatewayClient, verb: str, model_id: str, order: Order) -> ModelReading:
    try:
        with Progress(gateway, model_id):
            content = gateway.order(verb, model_id, order)
    except KeyboardInterrupt:
        click.echo(f"bulkhead: Not waiting any longer; the {verb} goes on.", err=True)
        raise
    model = gateway.read(content, ModelReading)
    if verb in _LOADS and model.state != "ready" and model.reason is not None:
        # It was ready for a moment: another model has taken its place, or another order has come.
        raise CommandError(f"{_outcome(model)} again: {printable(model.reason.rstrip('.'))}.")
    if model.state == "stopping":
        raise CommandError(f"{_outcome(model)}: its process has not ended yet.")
    return model


def _outcome(model: ModelReading) -> str:
    worker = model.worker
    if worker is None:
        return f"{printable(model.id)} is {model.state}"
    held = worker.footprint_bytes
    footprint = "" if held is None else f", {format_size(held)}"
    return f"{printable(model.id)} is {model.state} (pid {worker.pid}{footprint})"
