"""Errands: orders to short-lived processes in a worker's environment, and their answers, as lines
of JSON.

An errand that examines or measures models gets one order. The errand that measures memory gets
several, and answers each, until its standard input ends.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from protocol.life import MlxMemory


class Environment(Struct, frozen=True):
    """The first line of each answer: the imports are done."""

    python_version: str
    mlx_version: str
    mlx_lm_version: str


class Examined(Struct, frozen=True):
    """A line for each model. The `problem` keeps it from being loaded, or from chatting; `reason`
    is a sentence. `chats` says whether it has a chat template.
    """

    source: str
    problem: Literal["files", "architecture", "tokenizer", "template"] | None = None
    reason: str = ""
    chats: bool = False


class Examine(Struct, frozen=True):
    """Examine these models, one after another, without reading their weights."""

    sources: tuple[str, ...]


class Measure(Struct, frozen=True):
    """Load a model, and generate `tokens` tokens after a prompt, greedily and alone, `times`
    times.
    """

    source: str
    prompt: str
    tokens: int
    times: int


class Measured(Struct, frozen=True):
    """The time from the first token to the last, of the quickest run."""

    seconds: float


class Order(Struct, frozen=True, tag_field="order"):
    """Base of all orders to the process that measures memory."""


class Import(Order, frozen=True, tag="import"):
    """Import all that a worker imports before its hello; answered by `Imported`."""


class Hold(Order, frozen=True, tag="hold"):
    """Hold `size_bytes` of memory in all, and write to it. With `wire` it is wired if the system
    can. Answered by `MlxMemory`.
    """

    size_bytes: int
    wire: bool = False


class Drop(Order, frozen=True, tag="drop"):
    """Drop the memory that is held, which MLX keeps as buffers; answered by `MlxMemory`."""


class Trim(Order, frozen=True, tag="trim"):
    """Give those buffers back; answered by `MlxMemory`."""


class TimeSteps(Order, frozen=True, tag="time-steps"):
    """Compute for about `seconds` under limits of several kinds, in turn; answered by
    `StepTimes`.
    """

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
    """The medians of times of steps, by the limits in force, and the bytes that were active."""

    active_bytes: int
    without_limits_s: float
    limit_above_s: float
    limit_below_s: float
    small_cache_s: float
    no_cache_s: float


class AttentionPeak(Struct, frozen=True):
    """The growth from the smaller number of keys to the larger: of the peak without inputs and
    output, and of the matrix of scores.
    """

    grown_bytes: int
    scores_grown_bytes: int
