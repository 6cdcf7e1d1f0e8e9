"""What load, unload, restart and kill have in common."""

from __future__ import annotations

import threading
import time
from typing import Final

import click
from rich.text import Text

from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError
from gateway.cli.options import model_argument, reaches_gateway
from gateway.cli.output import printable, stderr_console
from gateway.http.command_bodies import ModelStatus, OrderOptions
from gateway.system.notation import format_size

_POLL_S: Final = 0.25
# States that last: the command's own last line tells of them.
_SETTLED: Final = ("ready", "unloaded", "held", "failed")


class Progress:
    """Shown on stderr: one line that changes on a terminal, elsewhere a line for each state."""

    def __init__(self, gateway: GatewayClient, model_id: str) -> None:
        self._gateway = gateway
        self._model_id = model_id
        self._console = stderr_console()
        self._spinner = self._console.status(Text(f"{printable(model_id)}: asking"))
        self._shown = ""
        self._began_at = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> None:
        if self._console.is_terminal:
            self._spinner.start()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._spinner.stop()

    def _watch(self) -> None:
        while not self._over.wait(_POLL_S):
            try:
                model = self._gateway.status().model(self._model_id)
            except CommandError:
                # The command's own request meets the same failure, and reports it.
                return
            if model is not None:
                self._show(model)

    def _show(self, model: ModelStatus) -> None:
        name = printable(model.id)
        if self._console.is_terminal:
            seconds = time.monotonic() - self._began_at
            self._spinner.update(Text(f"{name}: {_stage(model)}, {seconds:.0f} s"))
        elif model.state != self._shown and model.state not in _SETTLED:
            self._shown = model.state
            self._console.print(f"{name}: {_stage(model)}", soft_wrap=True)


def _stage(model: ModelStatus) -> str:
    if model.reason is None:
        return model.state
    # Some reasons begin with the state: "loading: 1.2 GB of 3.2 GB".
    told = model.reason.startswith(model.state)
    return printable(model.reason if told else f"{model.state}: {model.reason}")


_LOADS: Final = ("load", "restart")


def give_order(gateway: GatewayClient, verb: str, model_id: str, order: OrderOptions) -> None:
    """Send the order, show what happens until it is carried out, and print the outcome."""
    click.echo(_outcome(_carried_out(gateway, verb, model_id, order)))


def give_order_to_kill(gateway: GatewayClient, model_id: str, order: OrderOptions) -> None:
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


def _carried_out(
    gateway: GatewayClient, verb: str, model_id: str, order: OrderOptions
) -> ModelStatus:
    try:
        with Progress(gateway, model_id):
            model = gateway.order(verb, model_id, order)
    except KeyboardInterrupt:
        click.echo(f"bulkhead: Not waiting any longer; the {verb} goes on.", err=True)
        raise
    if verb in _LOADS and model.state != "ready" and model.reason is not None:
        # It was ready for a moment: another model has taken its place, or another order has come.
        raise CommandError(f"{_outcome(model)} again: {printable(model.reason.rstrip('.'))}.")
    if model.state == "stopping":
        raise CommandError(f"{_outcome(model)}: its process has not ended yet.")
    return model


def _outcome(model: ModelStatus) -> str:
    worker = model.worker
    if worker is None:
        return f"{printable(model.id)} is {model.state}"
    held = worker.footprint_bytes
    footprint = "" if held is None else f", {format_size(held)}"
    return f"{printable(model.id)} is {model.state} (pid {worker.pid}{footprint})"


@click.command("load")
@model_argument
@reaches_gateway
def load_command(gateway: GatewayClient, *, model: str) -> None:
    """Load a model now, and wait until it is ready.

    Also ends a hold, and tries again what has failed.
    """
    give_order(gateway, "load", model, OrderOptions())


@click.command("unload")
@model_argument
@click.option("--hold", is_flag=True, help="Refuse requests until `bulkhead load`.")
@click.option("--force", is_flag=True, help="Don't wait for running answers.")
@reaches_gateway
def unload_command(gateway: GatewayClient, *, model: str, hold: bool, force: bool) -> None:
    """Unload a model, and wait until its process has ended.

    Running answers get the configured drain_s to end. Requests that wait, and later ones, load the
    model again, unless --hold is given.
    """
    give_order(gateway, "unload", model, OrderOptions(hold=hold, force=force))


@click.command("restart")
@model_argument
@click.option("--force", is_flag=True, help="Don't wait for running answers.")
@reaches_gateway
def restart_command(gateway: GatewayClient, *, model: str, force: bool) -> None:
    """Unload a model, load it again in a new process, and wait until it is ready.

    Running answers get the configured drain_s to end.
    """
    give_order(gateway, "restart", model, OrderOptions(force=force))


@click.command("kill")
@model_argument
@click.option("--force", is_flag=True, help="SIGKILL at once.")
@reaches_gateway
def kill_command(gateway: GatewayClient, *, model: str, force: bool) -> None:
    """End a model's process without waiting for running answers.

    The process is asked to stop, then gets SIGTERM, then SIGKILL; --force begins with the last. On
    macOS a process that is killed with much memory may strand it until the next boot.
    """
    give_order_to_kill(gateway, model, OrderOptions(force=force))
