"""What short-lived processes in a worker's environment are asked, and answer, as lines of JSON.

Some do one errand; one measures memory in turn, an answer for each order, until its standard input
ends.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from protocol.life import MlxMemory


class Environment(Struct, frozen=True):
    """The first line: the imports are done."""

    python_version: str
    mlx_version: str
    mlx_lm_version: str


class Examined(Struct, frozen=True):
    """A line for each model: what keeps it from being loaded, or from chatting, in a sentence.

    `chats` says whether it has a chat template.
    """

    source: str
    problem: Literal["files", "architecture", "tokenizer", "template"] | None = None
    reason: str = ""
    chats: bool = False


class Examine(Struct, frozen=True):
    """Look at these, one after another, without their weights."""

    sources: tuple[str, ...]


class Measure(Struct, frozen=True):
    """Load a model and generate so many tokens after a prompt, greedily, alone; so many times."""

    source: str
    prompt: str
    tokens: int
    times: int


class Measured(Struct, frozen=True):
    """The quickest, from the first of the tokens to the last: load and prompt don't count."""

    seconds: float


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
