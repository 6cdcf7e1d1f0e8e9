"""The machine's memory by who holds it, in rows that add up to the total."""

from __future__ import annotations

from typing import Final

from rich.table import Table

from gateway.cli.bodies import GatewayReading, MemoryReading, WorkerReading
from gateway.cli.printable import printable
from gateway.config.sizes import format_size

UNKNOWN: Final = "-"


def memory_table(reading: GatewayReading) -> Table:
    """A model's weights, caches (with what a step computes on) and buffers are its worker's own
    account; the rest is what Python and its libraries take.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("memory", overflow="fold")
    for heading in ("holds", "granted", "weights", "caches", "buffers", "rest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for model in reading.models:
        if model.worker is not None:
            table.add_row(printable(model.id), *_worker_cells(model.worker))
    for holder, size_bytes in _others(reading.memory):
        table.add_row(holder, size(size_bytes))
    table.add_row("total", size(reading.memory.total_bytes), style="bold")
    return table


def _others(memory: MemoryReading) -> tuple[tuple[str, int | None], ...]:
    return (
        ("(spare workers)", memory.spare_bytes),
        ("(gateway)", memory.gateway_bytes),
        ("(other programs)", memory.other_bytes),
        ("(stranded)", memory.stranded_bytes),
        ("(available)", memory.available_bytes),
    )


def _worker_cells(worker: WorkerReading) -> tuple[str, ...]:
    parts = (worker.weight_bytes, worker.cache_bytes, worker.buffer_bytes)
    return tuple(
        size(each) for each in (worker.footprint_bytes, worker.granted_bytes, *parts, _rest(worker))
    )


def _rest(worker: WorkerReading) -> int | None:
    """What is left of the footprint. The parts are told by the worker, a moment apart from it."""
    rest_bytes = worker.footprint_bytes
    for each in (worker.weight_bytes, worker.cache_bytes, worker.buffer_bytes):
        if rest_bytes is None or each is None:
            return None
        rest_bytes -= each
    return None if rest_bytes is None else max(0, rest_bytes)


def size(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else format_size(size_bytes)
