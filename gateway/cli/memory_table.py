"""The machine's memory by who holds it, in rows that add up to the total."""

from __future__ import annotations

from typing import Final

from rich.table import Table

from gateway.cli.bodies import GatewayReading, MemoryReading, ModelReading, WorkerReading
from gateway.cli.printable import printable
from gateway.system.notation import format_size

UNKNOWN: Final = "-"


def memory_table(reading: GatewayReading) -> Table:
    """A model's floor is its own while it is loaded; what was lent can be called back. It wants so
    much in all. Weights and caches (with what a step computes on, and freed buffers) are its
    worker's own account of what it holds; the rest is what Python and its libraries take.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("memory", overflow="fold")
    for heading in ("holds", "floor", "lent", "wants", "weights", "caches", "rest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for model in reading.models:
        if model.worker is not None:
            table.add_row(printable(model.id), *_cells(model, model.worker))
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


def _cells(model: ModelReading, worker: WorkerReading) -> tuple[str, ...]:
    account = (model.floor_bytes, model.lent_bytes, model.wanted_bytes)
    parts = (worker.weight_bytes, _cached(worker), _rest(worker))
    return tuple(size(each) for each in (worker.footprint_bytes, *account, *parts))


def _cached(worker: WorkerReading) -> int | None:
    """The caches of its sequences, and what MLX keeps of freed ones."""
    if worker.cache_bytes is None or worker.buffer_bytes is None:
        return None
    return worker.cache_bytes + worker.buffer_bytes


def _rest(worker: WorkerReading) -> int | None:
    """What is left of the footprint. The parts are told by the worker, a moment apart from it."""
    rest_bytes = worker.footprint_bytes
    for each in (worker.weight_bytes, _cached(worker)):
        if rest_bytes is None or each is None:
            return None
        rest_bytes -= each
    return None if rest_bytes is None else max(0, rest_bytes)


def share(rate: float | None) -> str:
    return UNKNOWN if rate is None else f"{rate:.0%}"


def size(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else format_size(size_bytes)
