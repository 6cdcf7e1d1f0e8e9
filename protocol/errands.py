"""Errands: orders to short-lived processes in a worker's environment, and the answers, as lines of
JSON.

A process that examines or measures models gets one order. A probe, which measures MLX, gets several
orders, and answers each, until its standard input ends.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from protocol.life import MlxMemory


class Environment(Struct, frozen=True):
    """The first line of an answer, once the imports are done."""

    python_version: str
    mlx_version: str
    mlx_lm_version: str


class Examined(Struct, frozen=True):
    """The line of one model in the answer. The `problem` keeps the model from being loaded, or from
    chatting. `reason` is a sentence on it. `chats` says whether the model has a chat template.
    """

    source: str
    problem: Literal["files", "architecture", "tokenizer", "template"] | None = None
    reason: str = ""
    chats: bool = False


class Examine(Struct, frozen=True):
    """Examine these models, one after another, without reading their weights."""

    sources: tuple[str, ...]


class Measure(Struct, frozen=True):
    """Load a model, and generate `tokens` tokens after a prompt, greedily and with no other
    request, `times` times. Then compute a prompt of `long_tokens` tokens half as often, or of
    fewer tokens, if so many would take longer than `long_s`.
    """

    source: str
    prompt: str
    tokens: int
    times: int
    long_tokens: int
    long_s: float


class Measured(Struct, frozen=True):
    """The times of the quickest runs: from the first token of an answer to the last, and until the
    first token after a long prompt of `long_tokens` tokens. `prompt_ids` are the tokens of the
    short prompt, which the long prompt repeats.
    """

    seconds: float
    prompt_ids: tuple[int, ...]
    long_tokens: int
    long_seconds: float


class Generated(Struct, frozen=True):
    """Load a model, and generate `tokens` tokens greedily for each prompt, alone and then all at
    once; answered by `SameText`.
    """

    source: str
    prompts: tuple[str, ...]
    tokens: int


class SameText(Struct, frozen=True):
    """How many texts were the same alone and together, of how many."""

    same: int
    of: int


class Order(Struct, frozen=True, tag_field="order"):
    """Base of all orders to a probe."""


class Import(Order, frozen=True, tag="import"):
    """Import all that a worker imports before its hello; answered by `Imported`."""


class Hold(Order, frozen=True, tag="hold"):
    """Hold `size_bytes` of memory in all, and write to the memory. With `wire` it is wired, if the
    system can do so. Answered by `MlxMemory`.
    """

    size_bytes: int
    wire: bool = False


class TimeSteps(Order, frozen=True, tag="time-steps"):
    """Compute for about `seconds` under several limits of MLX, one after the other; answered by
    `StepTimes`.
    """

    seconds: float


class MeasureAttention(Order, frozen=True, tag="measure-attention"):
    """Compute attention for two numbers of keys; answered by `AttentionPeak`."""

    head_dim: int
    mask: Literal["array", "causal"]


class JoinArrays(Order, frozen=True, tag="join-arrays"):
    """Join arrays to one of at least `elements` elements; answered by `ComparedArray`."""

    elements: int


class Multiply(Order, frozen=True, tag="multiply"):
    """Multiply a matrix of `rows` rows in float16, and compare the product with that of float32 by
    parts; answered by `ComparedArray`.
    """

    rows: int


class Compute(Order, frozen=True, tag="compute"):
    """Compute steps for about `seconds`; answered by `Rate`."""

    seconds: float


ProbeOrder: TypeAlias = (
    Import | Hold | TimeSteps | MeasureAttention | JoinArrays | Multiply | Compute
)


class Imported(Struct, frozen=True):
    """The answer to `Import`. `device` is mx.device_info()."""

    back_end: Literal["metal", "cuda", "cpu"]
    device: dict[str, Any]
    memory: MlxMemory


class StepTimes(Struct, frozen=True):
    """The median times of a step, by the limits in force, and the bytes that were active."""

    active_bytes: int
    without_limits_s: float
    limit_above_s: float
    limit_below_s: float
    small_cache_s: float
    no_cache_s: float


class AttentionPeak(Struct, frozen=True):
    """The growth in bytes from the smaller number of keys to the larger number: of the peak without
    inputs and output, and of the matrix of scores.
    """

    grown_bytes: int
    scores_grown_bytes: int


class Rate(Struct, frozen=True):
    """The answer to `Compute`."""

    steps_per_s: float


class ComparedArray(Struct, frozen=True):
    """The elements of an array, and how many of them are wrong."""

    elements: int
    wrong: int
