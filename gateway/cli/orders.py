"""bulkhead load, unload, restart, kill and upgrade: orders that take a while to carry out."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Final, NamedTuple

import click
from rich.text import Text

from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError
from gateway.cli.gateway_access import local_settings
from gateway.cli.options import json_option, model_argument, reaches_gateway
from gateway.cli.output import printable, stderr_console
from gateway.http.wire.command_bodies import ModelStatus, OrderOptions, Status, UpgradeAnswer
from gateway.system.notation import format_size
from gateway.system.state_dir import NextGateway
from gateway.system.state_file import write_state

_POLL_S: Final = 0.25
# States that last. The last line of the command reports them, so they are no progress.
_SETTLED: Final = ("ready", "unloaded", "held", "failed")


# States in which a model's worker can't be handed over to the next gateway.
_UNSETTLED: Final = ("starting", "loading", "draining", "stopping")


class _Stage(NamedTuple):
    """`kind` names the stage; `text` may tell more of it from time to time."""

    kind: str
    text: str


class Progress:
    """Shows on stderr, until the context ends, what is waited for: on a terminal in one line that
    changes, elsewhere in a line for each state. Without `stage` that is the model's state.
    """

    def __init__(
        self,
        gateway: GatewayClient,
        subject: str,
        stage: Callable[[Status], _Stage | None] | None = None,
    ) -> None:
        self._gateway = gateway
        self._subject = printable(subject)
        self._stage = stage or (lambda status: _stage_of(status.model(subject)))
        self._console = stderr_console()
        self._spinner = self._console.status(Text(f"{self._subject}: asking"))
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
                stage = self._stage(self._gateway.status())
            except CommandError:
                # The command's own request fails, too, and the command reports that failure.
                return
            if stage is not None:
                self._show(stage)

    def _show(self, stage: _Stage) -> None:
        if self._console.is_terminal:
            seconds = time.monotonic() - self._began_at
            self._spinner.update(Text(f"{self._subject}: {stage.text}, {seconds:.0f} s"))
        elif stage.kind != self._shown and stage.kind not in _SETTLED:
            self._shown = stage.kind
            self._console.print(f"{self._subject}: {stage.text}", soft_wrap=True)


def _stage_of(model: ModelStatus | None) -> _Stage | None:
    return None if model is None else _Stage(model.state, _told(model))


def _stage_of_upgrade(status: Status) -> _Stage:
    """A worker that starts or ends can't be handed over. Running streams aren't waited for."""
    unsettled = [model for model in status.models if model.state in _UNSETTLED]
    if not unsettled:
        return _Stage("starts", "the next gateway starts")
    named = "; ".join(f"{printable(model.id)}: {_told(model)}" for model in unsettled)
    return _Stage(str([(model.id, model.state) for model in unsettled]), f"waits for {named}")


def _told(model: ModelStatus) -> str:
    if model.reason is None:
        return model.state
    # Some reasons begin with the state: "loading: 1.2 GB of 3.2 GB".
    is_whole = model.reason.startswith(model.state)
    return printable(model.reason if is_whole else f"{model.state}: {model.reason}")


_LOADS: Final = ("load", "restart")


def carried_out(
    gateway: GatewayClient, verb: str, model_id: str, order: OrderOptions
) -> ModelStatus:
    """Send the order, and show the model's state until the gateway has carried out the order.

    Raises:
        CommandError: the order was refused, or the model isn't in the state that was ordered.
    """
    try:
        with Progress(gateway, model_id):
            model = gateway.order(verb, model_id, order)
    except KeyboardInterrupt:
        if gateway.ends_with_command:
            said = f"The {verb} ends with the gateway of this command."
        else:
            said = f"Not waiting any longer; the {verb} goes on."
        click.echo(f"bulkhead: {said}", err=True)
        raise
    if verb in _LOADS and model.state != "ready" and model.reason is not None:
        # The model was ready for a moment. Then another model took its memory, or an order came.
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

    This also ends a hold, and lets a failed model start again.
    """
    click.echo(_outcome(carried_out(gateway, "load", model, OrderOptions())))


@click.command("unload")
@model_argument
@click.option("--hold", is_flag=True, help="Refuse requests until `bulkhead load`.")
@click.option("--force", is_flag=True, help="Don't wait for running answers.")
@reaches_gateway
def unload_command(gateway: GatewayClient, *, model: str, hold: bool, force: bool) -> None:
    """Unload a model, and wait until its process has ended.

    Running answers get the configured drain_s to end. Waiting and later requests load the model
    again, unless --hold is given.
    """
    options = OrderOptions(hold=hold, force=force)
    click.echo(_outcome(carried_out(gateway, "unload", model, options)))


@click.command("restart")
@model_argument
@click.option("--force", is_flag=True, help="Don't wait for running answers.")
@reaches_gateway
def restart_command(gateway: GatewayClient, *, model: str, force: bool) -> None:
    """Unload a model, load it again in a new process, and wait until it is ready.

    Running answers get the configured drain_s to end.
    """
    click.echo(_outcome(carried_out(gateway, "restart", model, OrderOptions(force=force))))


@click.command("kill")
@model_argument
@click.option("--force", is_flag=True, help="SIGKILL at once.")
@reaches_gateway
def kill_command(gateway: GatewayClient, *, model: str, force: bool) -> None:
    """End a model's process without waiting for running answers.

    The gateway asks the process to stop, then sends SIGTERM, then SIGKILL; with --force it sends
    SIGKILL at once. On macOS a SIGKILL may strand the memory of the process until the next boot.
    """
    model_id = gateway.model(model).id
    before = gateway.status().model(model_id)
    # `killed` may have the pid of a new worker, if the model is loaded again already.
    killed = carried_out(gateway, "kill", model, OrderOptions(force=force))
    if before is None or before.worker is None:
        click.echo(f"{_outcome(killed)}: there was no worker")
        return
    how = "" if killed.last_exit is None else f" {killed.last_exit.how}"
    click.echo(f"worker {before.worker.pid} ended{how}; {_outcome(killed)}")


@click.command("upgrade")
@click.option(
    "--python",
    metavar="PATH",
    help="Interpreter of the new gateway, if it is in another environment.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="The gateway's state folder, for --python [BULKHEAD_STATE_DIR].",
)
@json_option
@reaches_gateway
def upgrade_command(
    gateway: GatewayClient, python: str | None, state_dir: Path | None, *, as_json: bool
) -> None:
    """Replace the running gateway by the version that is installed now.

    Models stay loaded and streams flow on. If the new gateway fails to start, the present one goes
    on.
    """
    if python is not None:
        _choose(python, state_dir)
    with nullcontext() if as_json else Progress(gateway, "upgrade", _stage_of_upgrade):
        content = gateway.send("POST", "/admin/v1/upgrade")
    if as_json:
        click.echo(content)
        return
    upgraded = gateway.read(content, UpgradeAnswer)
    before, after = printable(upgraded.version_before), printable(upgraded.version)
    versions = f"version {after}" if before == after else f"version {after} instead of {before}"
    click.echo(f"{versions} serves (pid {upgraded.pid}), after {upgraded.seconds:.1f} s")


def _choose(python: str, named: Path | None) -> None:
    found = shutil.which(python)
    if found is None:
        raise CommandError(f"{printable(python)} is not a program.")
    _, state_dir = local_settings(named)
    # A link isn't followed, since Python finds its environment by the path of the link.
    write_state(state_dir.successor_path, NextGateway(str(Path(found).absolute())))
