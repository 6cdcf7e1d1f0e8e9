"""bulkhead pull"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator

import click
import msgspec

from gateway.cli.bodies import PullOrder, PullReading
from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError, NobodyListensError
from gateway.cli.options import names_gateway, reaches_gateway
from gateway.cli.printable import printable
from gateway.cli.pull_here import PullHere
from gateway.cli.pull_view import PullView
from gateway.system.notation import format_size


@click.command("pull")
@click.argument("model", metavar="MODEL[:QUANT]")
@click.option("--force", is_flag=True, help="Also if it won't fit into the memory.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
@reaches_gateway
def command(gateway: GatewayClient, *, model: str, force: bool, as_json: bool) -> None:
    """Get a model from the Hugging Face hub.

    MODEL is a repository, as mlx-community/Qwen3-4B-4bit. MODEL:QUANT, as Qwen/Qwen3-4B:4bit,
    finds the repository of that name with that quantization, of the same owner or of
    mlx-community.

    A pull goes on where an earlier one stopped, and checks every file. Ctrl-C cancels it. The
    gateway pulls, or this command if no gateway runs.
    """
    reading = _pulled(gateway, model, force=force)
    if _asks(reading, force=force) and not as_json:
        click.echo(f"bulkhead: {printable(reading.reason or '')}", err=True)
        if not click.confirm("Pull it anyway?", err=True):
            raise click.exceptions.Exit(1)
        reading = _pulled(gateway, model, force=True)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(reading), indent=2))
        if reading.state != "done":
            raise click.exceptions.Exit(1)
        return
    if reading.state != "done":
        raise CommandError(reading.reason or f"The pull was {reading.state}.")
    size = "" if reading.total_bytes is None else f" ({format_size(reading.total_bytes)})"
    click.echo(f"{printable(reading.repository or model)} is there{size}{_next_step(reading)}")


def _asks(reading: PullReading, *, force: bool) -> bool:
    return reading.code == "insufficient_memory" and not force and sys.stdin.isatty()


def _next_step(reading: PullReading) -> str:
    if reading.offered_as is not None:
        return f": bulkhead chat {printable(reading.offered_as)}"
    if not reading.id:
        return ": bulkhead serve"
    return ", and no model of this gateway: see bulkhead show"


def _pulled(gateway: GatewayClient, model: str, *, force: bool) -> PullReading:
    try:
        begun = gateway.begin_pull(PullOrder(model, force))
    except NobodyListensError:
        # Somebody who named a gateway means that one.
        if names_gateway():
            raise
        here = PullHere(model, force=force)
        with _cancelled_by_interrupt(here.cancel):
            return _shown(model, here.readings())
    with (
        _cancelled_by_interrupt(lambda: gateway.cancel_pull(begun.id)),
        gateway.pull(begun.id) as readings,
    ):
        return _shown(model, readings)


@contextlib.contextmanager
def _cancelled_by_interrupt(cancel: Callable[[], object]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        cancel()
        click.echo("bulkhead: Cancelled. What came is kept: pull again to go on.", err=True)
        raise


def _shown(model: str, readings: Iterable[PullReading]) -> PullReading:
    last = None
    with PullView(model) as view:
        for reading in readings:
            last = reading
            view.show(reading)
    if last is None or last.state in ("preparing", "pulling"):
        raise CommandError("The gateway went away; it goes on with the pull when it is back.")
    return last
