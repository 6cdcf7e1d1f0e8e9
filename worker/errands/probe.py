"""What MLX's memory costs in this process, order by order."""

from __future__ import annotations

import importlib
from typing import Any

import mlx.core as mx
from msgspec import Struct

from protocol.memory import MlxMemory
from protocol.probe import (
    Drop,
    Hold,
    Import,
    Imported,
    MeasureAttention,
    ProbeOrder,
    TimeSteps,
    Trim,
)
from worker.errands.attention import measure_attention
from worker.errands.back_end import back_end
from worker.errands.errand import Errand
from worker.errands.steps import time_steps
from worker.mlx_lm.wiring import wiring
from worker.system.memory import read_device, read_memory, released_memory, trim


def run(errand: Errand) -> None:
    """Until nothing more is asked; then what is held goes back as a worker's does."""
    errand.begin()
    with released_memory():
        _obey_all(errand)


def _obey_all(errand: Errand) -> None:
    held: list[mx.array] = []
    for order in errand.orders(ProbeOrder):
        errand.answer(_obey(order, held))


def _obey(order: Any, held: list[mx.array]) -> Struct:
    match order:
        case Import():
            return _import()
        case Hold(size_bytes=size_bytes, wire=wire):
            return _hold(held, size_bytes, wire=wire)
        case Drop():
            held.clear()
        case Trim():
            trim()
        case TimeSteps(seconds=seconds):
            return time_steps(seconds)
        case MeasureAttention(head_dim=head_dim, mask=mask):
            return measure_attention(head_dim, with_array=mask == "array")
    return read_memory()


def _import() -> Imported:
    # Here, not above: this is what is measured.
    for module in ("worker.process.loop", "worker.runtime.serve"):
        importlib.import_module(module)
    read_device()
    return Imported(back_end(), dict(mx.device_info()), read_memory())


def _hold(held: list[mx.array], size_bytes: int, *, wire: bool) -> MlxMemory:
    if wire:
        wiring.wire(size_bytes, read_device())
    missing_bytes = size_bytes - sum(each.nbytes for each in held)
    if missing_bytes > 0:
        held.append(mx.ones((missing_bytes // 4,), mx.float32))
        # Computed on once, as what lies idle may not be resident.
        mx.eval(held[-1], mx.max(held[-1]))
    mx.synchronize()
    return read_memory()
