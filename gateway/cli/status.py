"""bulkhead status"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Final, TypeGuard

import click
import msgspec
from rich.console import Console
from rich.table import Table

from gateway.cli.bodies import (
    GatewayReading,
    LastExit,
    MemoryReading,
    ModelReading,
    PromptCacheReading,
)
from gateway.cli.client import GatewayClient
from gateway.cli.console import stdout_console
from gateway.cli.memory_table import UNKNOWN, memory_table, share, size
from gateway.cli.options import json_option, reaches_gateway
from gateway.cli.printable import printable

_LOG_LINES: Final = 3
_WATCH_S: Final = 1.0
_UNITS: Final = ((2 * 86400.0, 86400.0, "d"), (2 * 3600.0, 3600.0, "h"), (120.0, 60.0, "min"))


@click.command("status")
@json_option
@click.option("-w", "--watch", is_flag=True, help="Show it again every second until Ctrl-C.")
@reaches_gateway
def command(gateway: GatewayClient, *, as_json: bool, watch: bool) -> None:
    """Show the gateway, its memory and its models.

    A worker holds what the system would get back if it ended. Last step is how long ago it last
    produced something, cached the share of prompts' tokens that weren't computed anew.
    """
    _show(gateway, as_json=as_json)
    while watch:
        time.sleep(_WATCH_S)
        if sys.stdout.isatty():
            click.clear()
        _show(gateway, as_json=as_json)


def _show(gateway: GatewayClient, *, as_json: bool) -> None:
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
    if reading.reason is not None:
        console.print(printable(f"Careful: {reading.reason}"))
    console.print(_budget_line(reading.memory))
    console.print(_prompts_line(reading.prompt_cache))
    console.print()
    console.print(_table(reading.models))
    if any(next(_remarks(each), None) for each in reading.models):
        console.print()
    for model in reading.models:
        for remark in _remarks(model):
            console.print(remark)
        for line in _last_words(model):
            console.print(line, no_wrap=True, overflow="ellipsis")
    console.print()
    console.print(memory_table(reading))


def _budget_line(memory: MemoryReading) -> str:
    pressure = "" if memory.pressure is None else f"; pressure {memory.pressure}"
    return (
        f"Budget {size(memory.budget_bytes)}: workers hold {size(memory.footprint_bytes)}, "
        f"granted {size(memory.granted_bytes)}{pressure}"
    )


def _prompts_line(prompts: PromptCacheReading) -> str:
    return (
        f"Prompts: {size(prompts.memory_bytes)} kept in memory, {size(prompts.disk_bytes)} on "
        f"disk; {share(prompts.hit_rate)} of {prompts.prompt_tokens:,} tokens were cached"
    )


def _table(models: tuple[ModelReading, ...]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("model", overflow="fold")
    table.add_column("state", no_wrap=True)
    for heading in ("pid", "context", "active", "queued", "restarts", "last step", "cached"):
        table.add_column(heading, justify="right", no_wrap=True)
    for model in models:
        worker = model.worker
        step_age_s = None if worker is None else worker.last_step_age_s
        table.add_row(
            printable(model.id),
            model.state,
            UNKNOWN if worker is None else str(worker.pid),
            UNKNOWN if model.context_tokens is None else f"{model.context_tokens:,}",
            str(model.active_requests),
            str(model.queue_depth),
            str(model.restarts),
            UNKNOWN if step_age_s is None else _duration(step_age_s),
            share(model.prompt_cache.hit_rate),
        )
    return table


def _remarks(model: ModelReading) -> Iterator[str]:
    if model.reason is not None:
        yield printable(f"{model.id}: {model.reason}")
    if _died(model.last_exit):
        yield printable(f"{model.id}: {_exit(model.last_exit)}")


def _last_words(model: ModelReading) -> Iterator[str]:
    if _died(model.last_exit):
        for line in model.last_exit.log_tail[-_LOG_LINES:]:
            yield f"  | {printable(line)}"


def _died(last_exit: LastExit | None) -> TypeGuard[LastExit]:
    """An exit with code 0 is what was asked for, and no news."""
    return last_exit is not None and last_exit.code != 0


def _exit(last_exit: LastExit) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last_exit.at))
    return f"the last worker ended {last_exit.how} at {at}: {last_exit.reason}"


def _duration(seconds: float) -> str:
    for least_s, unit_s, unit in _UNITS:
        if seconds >= least_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
