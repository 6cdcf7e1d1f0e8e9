"""What a process in a worker's environment is asked in turn about its memory, as lines of JSON: an
answer for each order. It ends when its standard input does.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from protocol.memory import MlxMemory


class Order(Struct, frozen=True, tag_field="order"):
    """Base of all."""


class Import(Order, frozen=True, tag="import"):
    """Import what a worker imports before its hello; answered by `Imported`."""


class Hold(Order, frozen=True, tag="hold"):
    """Hold so many bytes in all, written to, wired where that is asked for and possible; answered
    by `MlxMemory`.
    """

    size_bytes: int
    wire: bool = False


class Drop(Order, frozen=True, tag="drop"):
    """Let go of what is held, which MLX keeps as buffers; answered by `MlxMemory`."""


class Trim(Order, frozen=True, tag="trim"):
    """Give those buffers back; answered by `MlxMemory`."""


class TimeSteps(Order, frozen=True, tag="time-steps"):
    """Compute for about so long under limits of several kinds, in turn; answered by `StepTimes`."""

    seconds: float


class MeasureAttention(Order, frozen=True, tag="measure-attention"):
    """Answered by `AttentionPeak`. Attention is computed for two numbers of keys."""

    head_dim: int
    mask: Literal["array", "causal"]


ProbeOrder: TypeAlias = Import | Hold | Drop | Trim | TimeSteps | MeasureAttention


class Imported(Struct, frozen=True):
    """`device` is mx.device_info()."""

    back_end: Literal["metal", "cuda", "cpu"]
    device: dict[str, Any]
    memory: MlxMemory


class StepTimes(Struct, frozen=True):
    """Medians in seconds, by the limits in force; bytes that were active."""

    active_bytes: int
    without_limits_s: float
    limit_above_s: float
    limit_below_s: float
    small_cache_s: float
    no_cache_s: float


class AttentionPeak(Struct, frozen=True):
    """By how much the peak beside inputs and output grew from the fewer keys to the more, and by
    how much the matrix of scores did.
    """

    grown_bytes: int
    scores_grown_bytes: int
