"""bulkhead pull"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import click
from msgspec import Struct
from rich.text import Text

from gateway.cli.child_gateway import asks_gateway
from gateway.cli.client import ANSWER, GatewayClient
from gateway.cli.failure import CommandError
from gateway.cli.output import plural, print_json, printable, stderr_console
from gateway.models.check_reports import CheckStatus
from gateway.system.notation import format_size

_PRINT_EVERY_S: Final = 10.0
_BAR_CELLS: Final = 24
_PULLS: Final = "/admin/v1/pulls"


class PullOptions(Struct, frozen=True):
    model: str
    force: bool


class OutlookReading(Struct, frozen=True):
    fits: bool
    sentence: str


class PullReading(Struct, frozen=True, kw_only=True):
    """A pull at one moment, as the gateway tells it."""

    id: str
    model: str
    state: str
    repository: str | None = None
    reason: str | None = None
    code: str | None = None
    done_bytes: int | None = None
    total_bytes: int | None = None
    bytes_per_s: float | None = None
    seconds_left: float | None = None
    outlook: OutlookReading | None = None
    offered_as: str | None = None
    check: CheckStatus | None = None

    @property
    def over(self) -> bool:
        return self.state not in ("preparing", "pulling", "checking")


class PullView:
    def __init__(self, model: str) -> None:
        self._console = stderr_console()
        self._spinner = self._console.status(Text(f"{printable(model)}: asking"))
        self._outlook_printed = False
        self._printed_at = 0.0
        self._printed = ""

    def __enter__(self) -> PullView:
        if self._console.is_terminal:
            self._spinner.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._spinner.stop()

    def show(self, reading: PullReading) -> None:
        if reading.outlook is not None and not self._outlook_printed and reading.state == "pulling":
            self._outlook_printed = True
            which = f"{reading.repository}, {format_size(reading.total_bytes or 0)}"
            self._print(f"{which}. {reading.outlook.sentence}")
        if reading.over:
            return
        line = progress_line(reading)
        if self._console.is_terminal:
            self._spinner.update(Text(line))
        elif line != self._printed and time.monotonic() - self._printed_at >= _PRINT_EVERY_S:
            self._printed, self._printed_at = line, time.monotonic()
            self._print(line)

    def _print(self, text: str) -> None:
        self._console.print(printable(text), soft_wrap=not self._console.is_terminal)


def progress_line(reading: PullReading) -> str:
    """The line for a pull: `name [####    ] 1.2 GB of 4.0 GB, 85.0 MB/s, 33 s left`."""
    name = printable(reading.repository or reading.model)
    if reading.state == "checking":
        return f"{name}: it is there, and is being checked"
    if not reading.total_bytes:
        return f"{name}: {printable(reading.reason or 'asking what there is')}"
    done_bytes = reading.done_bytes or 0
    filled = _BAR_CELLS * done_bytes // reading.total_bytes
    bar = "#" * filled + " " * (_BAR_CELLS - filled)
    parts = [f"{name} [{bar}] {format_size(done_bytes)} of {format_size(reading.total_bytes)}"]
    if reading.reason is not None:
        parts.append(printable(reading.reason))
    elif reading.bytes_per_s is not None:
        parts.append(f"{format_size(int(reading.bytes_per_s))}/s")
        if reading.seconds_left is not None:
            parts.append(f"{time_left(reading.seconds_left)} left")
    return ", ".join(parts)


def time_left(seconds: float) -> str:
    """The time as text: `8 s`, `4 min`, `2 h 10 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


@click.command("pull")
@click.argument("model", metavar="MODEL[:QUANT]")
@click.option("--force", is_flag=True, help="Pull even a model that won't fit into memory.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
@asks_gateway
def pull_command(gateway: GatewayClient, *, model: str, force: bool, as_json: bool) -> None:
    """Download a model from the Hugging Face hub.

    MODEL is a repository, such as mlx-community/Qwen3-4B-4bit. MODEL:QUANT, such as
    Qwen/Qwen3-4B:4bit, finds the repository of that name with that quantization, of the same owner
    or of mlx-community.

    A pull goes on where an earlier one stopped, and checks every file. Ctrl-C cancels it.
    """
    if as_json:
        reading = _pulled(gateway, model, force=force)
        print_json(reading)
        if reading.state != "done":
            raise click.exceptions.Exit(1)
        return
    reading = pull(gateway, model, force=force)
    size = "" if reading.total_bytes is None else f" ({format_size(reading.total_bytes)})"
    click.echo(
        f"{printable(reading.repository or model)} is there{size}{_next_step(gateway, reading)}"
    )
    if (remark := _remark_on_check(reading)) is not None:
        click.echo(f"bulkhead: {printable(remark)}", err=True)


def _remark_on_check(reading: PullReading) -> str | None:
    """What the check of the pulled model has found; None: nothing, or there was none."""
    if reading.check is None:
        return reading.reason
    if reading.check.verdict == "ok":
        return None
    if reading.check.verdict == "incomplete":
        return (
            "Its check has found nothing wrong, but not everything was checked: see "
            f"`bulkhead check {reading.offered_as}`."
        )
    found = f"{plural(reading.check.faults, 'fault')}, {plural(reading.check.warnings, 'warning')}"
    return f"Its check has found {found}: see `bulkhead check {reading.offered_as}`."


def pull(gateway: GatewayClient, model: str, *, force: bool) -> PullReading:
    """Pull a model, with its progress on stderr. If the model won't fit, ask whether to pull it.

    Raises:
        CommandError: the pull failed.
    """
    reading = _pulled(gateway, model, force=force)
    if _asks(reading, force=force):
        click.echo(f"bulkhead: {printable(reading.reason or '')}", err=True)
        if not click.confirm("Pull it anyway?", err=True):
            raise click.exceptions.Exit(1)
        reading = _pulled(gateway, model, force=True)
    if reading.state != "done":
        raise CommandError(reading.reason or f"The pull was {reading.state}.")
    return reading


def _asks(reading: PullReading, *, force: bool) -> bool:
    return reading.code == "insufficient_memory" and not force and sys.stdin.isatty()


def _next_step(gateway: GatewayClient, reading: PullReading) -> str:
    if reading.offered_as is not None:
        verb = "run" if gateway.ends_with_command else "chat"
        return f": bulkhead {verb} {printable(reading.offered_as)}"
    return ", but this gateway doesn't serve it: see bulkhead show"


def _pulled(gateway: GatewayClient, model: str, *, force: bool) -> PullReading:
    started = gateway.read(
        gateway.send("POST", _PULLS, PullOptions(model, force), ANSWER), PullReading
    )
    with (
        _cancelled_by_interrupt(lambda: gateway.send("DELETE", f"{_PULLS}/{started.id}")),
        gateway.stream("GET", f"{_PULLS}/{started.id}") as events,
    ):
        readings = (
            gateway.read(event.data, PullReading) for event in events if event.kind == "pull"
        )
        return _shown(model, readings)


@contextlib.contextmanager
def _cancelled_by_interrupt(cancel: Callable[[], object]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        cancel()
        click.echo("bulkhead: Cancelled. The parts that came stay: pull again to go on.", err=True)
        raise


def _shown(model: str, readings: Iterable[PullReading]) -> PullReading:
    last = None
    with PullView(model) as view:
        for reading in readings:
            last = reading
            view.show(reading)
    if last is None or not last.over:
        raise CommandError("The gateway has ended; its next start goes on with the pull.")
    return last
