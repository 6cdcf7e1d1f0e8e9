"""bulkhead status"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.bodies import GatewayReading, LastExit, MemoryReading, ModelReading
from gateway.cli.client import GatewayClient
from gateway.cli.console import stdout_console
from gateway.cli.options import json_option, reaches_gateway
from gateway.cli.printable import printable
from gateway.config.sizes import format_size

_NOTHING: Final = "-"
_LOG_LINES: Final = 3
_UNITS: Final = ((2 * 86400.0, 86400.0, "d"), (2 * 3600.0, 3600.0, "h"), (120.0, 60.0, "min"))


@click.command("status")
@json_option
@reaches_gateway
def command(gateway: GatewayClient, *, as_json: bool) -> None:
    """Show the gateway, its memory and its models.

    Footprint is what a worker really holds: what the system would get back if it ended. Last step
    is how long ago the worker last produced something.
    """
    content = gateway.status_json()
    reading = gateway.read(content, GatewayReading)
    if as_json:
        click.echo(msgspec.json.format(content, indent=2))
    else:
        _print(stdout_console(), reading, gateway.url)


def _print(console: Console, reading: GatewayReading, url: str) -> None:
    console.print(
        f"Bulkhead {reading.version} at {url}: {reading.state}, pid {reading.pid}, "
        f"up {_duration(reading.uptime_s)}"
    )
    console.print(_memory_line(reading.memory))
    console.print()
    console.print(_table(reading.models))
    remarks = [remark for model in reading.models for remark in _remarks(model)]
    if remarks:
        console.print()
    for remark in remarks:
        console.print(remark)


def _memory_line(memory: MemoryReading) -> str:
    budget = "no budget" if memory.budget_bytes is None else f"budget {_size(memory.budget_bytes)}"
    parts = [
        f"Memory: workers hold {_size(memory.footprint_bytes)} ({budget})",
        f"{_size(memory.available_bytes)} of {_size(memory.total_bytes)} available",
    ]
    if memory.stranded_bytes:
        parts.append(f"{_size(memory.stranded_bytes)} stranded")
    if memory.pressure is not None:
        parts.append(f"pressure {memory.pressure}")
    return ", ".join(parts)


def _table(models: tuple[ModelReading, ...]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("model", overflow="fold")
    table.add_column("state", no_wrap=True)
    for heading in ("pid", "footprint", "active", "queued", "restarts", "last step"):
        table.add_column(heading, justify="right", no_wrap=True)
    for model in models:
        worker = model.worker
        step_age_s = None if worker is None else worker.last_step_age_s
        table.add_row(
            printable(model.id),
            model.state,
            _NOTHING if worker is None else str(worker.pid),
            _NOTHING if worker is None else _size(worker.footprint_bytes),
            str(model.active_requests),
            str(model.queue_depth),
            str(model.restarts),
            _NOTHING if step_age_s is None else _duration(step_age_s),
        )
    return table


def _remarks(model: ModelReading) -> Iterator[Text]:
    if model.reason is not None:
        yield Text(printable(f"{model.id}: {model.reason}"))
    # An exit with code 0 is what was asked for.
    if model.last_exit is not None and model.last_exit.code != 0:
        yield Text(printable(f"{model.id}: {_exit(model.last_exit)}"))
        for line in model.last_exit.log_tail[-_LOG_LINES:]:
            yield Text(f"  | {printable(line)}", no_wrap=True, overflow="ellipsis")


def _exit(last_exit: LastExit) -> str:
    how = last_exit.signal or f"exit code {last_exit.code}"
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last_exit.at))
    return f"the last worker ended at {at}: {last_exit.reason} ({how})"


def _size(size_bytes: int | None) -> str:
    return _NOTHING if size_bytes is None else format_size(size_bytes)


def _duration(seconds: float) -> str:
    for least_s, unit_s, unit in _UNITS:
        if seconds >= least_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
