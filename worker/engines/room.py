"""The memory limit that the gateway gives: the bytes of caches that fit it, its effect on MLX, and
the longest prompt that follows from it. Under a lower limit `make_room` of each engine puts rows
aside that don't fit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import mlx.core as mx

from protocol.answers import RequestFailed, RequestField
from protocol.life import (
    CACHE_STEP_TOKENS,
    DRAFT_TOKENS,
    LARGEST_CHUNK_TOKENS,
    LARGEST_CHUNK_TOKENS_ON_CPU,
    Bound,
    Load,
    peak_share,
)
from worker.engines.sequence import Sequence
from worker.mlx_lm.caches import bytes_of, elements_of, make_caches
from worker.mlx_lm.row_groups import Grouping
from worker.system.errors import PromptError
from worker.system.memory import most_parts, wait_for_computing

_STEP_BYTES: Final = 64_000_000
# Attention on a CPU reads 1 to 3 GB of caches a second. With 9 rows, all padded to one row of
# 16,000 tokens, a step took 60 ms. With a batch of its own for the long row, a step took 7 ms.
_STEP_BYTES_ON_CPU: Final = 8_000_000
# Scores are no smaller than this.
_LEAST_ELEMENT_BYTES: Final = 2
# Attention goes through the groups of a batch one after another.
_MOST_GROUPS: Final = 8


class CacheSizes(NamedTuple):
    """The bytes of a sequence's caches: `token_bytes` for each token, and `row_bytes` at any
    length. A draft model takes `draft_token_bytes` for each token that it knows. A batch takes up
    to `peak` times its bytes while it grows or is merged with another batch.

    mlx-lm's batches are dense: every row takes as many bytes as the longest row. Of a row the
    largest array has `token_elements` for each token, or `row_elements` at any length.
    """

    token_bytes: int
    row_bytes: int
    peak: float
    draft_token_bytes: int = 0
    token_elements: int = 0
    row_elements: int = 0

    def batch_bytes(self, rows: int, longest_tokens: int) -> int:
        """The bytes of the caches of a batch that doesn't grow."""
        tokens = _whole_steps(longest_tokens)
        drafted_bytes = min(tokens, DRAFT_TOKENS) * self.draft_token_bytes
        return rows * (tokens * self.token_bytes + drafted_bytes + self.row_bytes)

    def fits_arrays(self, rows: int, longest_tokens: int) -> bool:
        """Whether no array of such a batch has more elements than an array may have. One row always
        does: its length is bounded by `most_tokens`.
        """
        row_elements = max(_whole_steps(longest_tokens) * self.token_elements, self.row_elements)
        return rows <= most_parts(row_elements)

    @property
    def most_tokens(self) -> int | None:
        """The most tokens of a sequence that arrays have room for; None: no array grows with it."""
        if not self.token_elements:
            return None
        # A row counts with the tokens that its next step adds.
        steps = most_parts(self.token_elements * CACHE_STEP_TOKENS) - 1
        return steps * CACHE_STEP_TOKENS


NO_CACHES = CacheSizes(0, 0, 1.0)


def _whole_steps(tokens: int) -> int:
    return -(-tokens // CACHE_STEP_TOKENS) * CACHE_STEP_TOKENS


class BatchSize(NamedTuple):
    """The places for rows in a batch, or in a group of rows of a batch, and the length to which all
    these are padded.
    """

    rows: int
    longest_tokens: int


@dataclass
class CacheRoom:
    """The memory limit of this process, and the bytes that caches can't have.

    `limit_bytes` None: there is no limit. A loan raises the limit, and a recall lowers it. The
    limit can grow to `most_bytes`, if that is known. `fixed_bytes` are the weights and the bytes
    beside MLX's account. A step takes `working_bytes`, and `working_token_bytes` more for each
    token of the longest sequence.
    """

    shape: CacheSizes
    limit_bytes: int | None = None
    most_bytes: int | None = None
    weight_bytes: int = 0
    fixed_bytes: int = 0
    # The growth of the bytes beside MLX's account, as by a leak. The next worker begins without it.
    grown_bytes: int = 0
    working_bytes: int = 0
    working_token_bytes: int = 0
    # Bytes of the batch of texts whose vectors are being computed.
    vector_bytes: int = 0

    def needed_bytes(self, batches: Iterable[BatchSize]) -> int:
        """The limit of the process that these batches need together. Only one batch or group grows
        at a time.
        """
        sizes = [batch for batch in batches if batch.rows]
        longest_tokens = max((size.longest_tokens for size in sizes), default=0)
        # Rounded up to steps of a cache, by which caches grow. Otherwise each token would change
        # the result.
        longest_tokens = _whole_steps(longest_tokens)
        resting = [self.shape.batch_bytes(*size) for size in sizes]
        return (
            self.fixed_bytes
            + self.working_bytes
            + self.working_token_bytes * longest_tokens
            + self.vector_bytes
            + sum(resting)
            + int(max(resting, default=0) * (self.shape.peak - 1.0))
        )

    @property
    def pair_elements(self) -> int:
        """The most elements that an array of a step has for each token of a chunk and each token
        that it sees, as the scores of attention; 0: no array has so many.
        """
        return self.working_token_bytes // (_LEAST_ELEMENT_BYTES * largest_chunk())

    @property
    def free_bytes(self) -> int:
        """The part of the limit that is left for caches; 0 without a limit."""
        taken_bytes = self.fixed_bytes + self.working_bytes
        return max(0, (self.limit_bytes or 0) - taken_bytes)

    def holds(self, batches: Iterable[BatchSize]) -> bool:
        sizes = list(batches)
        if not all(self.shape.fits_arrays(*size) for size in sizes):
            return False
        return self.limit_bytes is None or self.needed_bytes(sizes) <= self.limit_bytes

    def could_hold(self, tokens: int) -> bool:
        """Whether a sequence of `tokens` tokens fits the highest limit that this process can get,
        if the sequence runs alone.
        """
        if self.limit_bytes is None or self.most_bytes is None:
            return True
        return self._lasting_bytes(tokens) <= max(self.limit_bytes, self.most_bytes)

    def _lasting_bytes(self, tokens: int) -> int:
        passing_bytes = self.grown_bytes + self.vector_bytes
        return self.needed_bytes([BatchSize(1, tokens)]) - passing_bytes

    @property
    def least_bytes(self) -> int:
        """The limit that the shortest sequence needs, whose caches have one step of tokens."""
        return self._lasting_bytes(CACHE_STEP_TOKENS)

    def longest_tokens(self, tokens: int) -> int:
        """The length of the longest sequence that can ever run: `tokens` if that many can,
        otherwise fewer, in whole steps of a cache.
        """
        if self.could_hold(tokens):
            return tokens
        steps = bisect_left(
            range(1, tokens // CACHE_STEP_TOKENS + 2),
            True,
            key=lambda step: not self.could_hold(step * CACHE_STEP_TOKENS),
        )
        return steps * CACHE_STEP_TOKENS


def largest_chunk() -> int:
    """The most tokens of prompts, over all rows, that one chunk may have on MLX's device."""
    return LARGEST_CHUNK_TOKENS_ON_CPU if mx.default_device() == mx.cpu else LARGEST_CHUNK_TOKENS


def compiles_kernels() -> bool:
    """Whether MLX's device compiles kernels at their first use. On a CPU MLX keeps nothing."""
    return mx.default_device().type != mx.DeviceType.cpu


def step_bytes() -> int:
    """The fixed cost of a step, as the bytes of caches that a step could read in that time."""
    return _STEP_BYTES_ON_CPU if mx.default_device() == mx.cpu else _STEP_BYTES


def grouping(shape: CacheSizes) -> Grouping:
    """The groups of rows in a batch of a model that takes groups."""
    return Grouping(_MOST_GROUPS, step_bytes() // max(1, shape.token_bytes))


def measure(model: Any, make: Callable[[], list[Any]] | None = None) -> CacheSizes:
    """The sizes of a model's caches, from the shapes of what two tokens would leave there. Nothing
    is computed. `make` makes the caches; None: mlx-lm makes them.
    """
    caches = make_caches(model) if make is None else make()
    model(mx.array([[0, 0]]), cache=caches)
    token_elements, row_elements = elements_of(caches)
    return CacheSizes(
        *bytes_of(caches),
        peak_share(len(caches)),
        token_elements=token_elements,
        row_elements=row_elements,
    )


# MLX's limit is a guard rail above the limit that the engine keeps to. Beyond MLX's limit each
# command buffer is waited for, and each allocation that the buffer cache can't serve empties that
# cache (mlx transforms.cpp, allocator.cpp).
_GUARD_SHARE: Final = 0.1
_LEAST_GUARD_BYTES: Final = 256_000_000
# With a smaller buffer cache each step would allocate its temporaries anew.
_LEAST_CACHE_BYTES: Final = 32_000_000
# More bytes than any machine has.
_LARGEST_BYTES: Final = 1 << 62


class WorkerLimits:
    """The memory limits of a worker with a model. The engine keeps to `room`, and MLX's limits
    follow from `room`.
    """

    def __init__(self, room: CacheRoom) -> None:
        self.room = room
        self._least_beside_bytes = _LARGEST_BYTES

    def set_limit(self, limit_bytes: int, beside_bytes: int) -> None:
        """Set another limit of the process, which holds `beside_bytes` beside MLX's account."""
        self._least_beside_bytes = min(self._least_beside_bytes, beside_bytes)
        self.room.limit_bytes = limit_bytes
        self.room.fixed_bytes = beside_bytes + self.room.weight_bytes
        self.room.grown_bytes = beside_bytes - self._least_beside_bytes
        self._apply()

    @property
    def mlx_bytes(self) -> int:
        """The part of the limit that is left for MLX's account; 0 without a limit."""
        if self.room.limit_bytes is None:
            return 0
        return self.room.limit_bytes - (self.room.fixed_bytes - self.room.weight_bytes)

    def _apply(self) -> None:
        # A limit below MLX's active memory would free nothing, and would slow down each step.
        mlx_bytes = max(self.mlx_bytes, mx.get_active_memory())
        mx.set_memory_limit(mlx_bytes + max(int(mlx_bytes * _GUARD_SHARE), _LEAST_GUARD_BYTES))
        # MLX keeps the buffers of one peak for the next. Otherwise the next peak would allocate
        # anew, and on a GPU an allocation waits for all running computations.
        peaks_bytes = int(self.room.free_bytes * (1.0 - 1.0 / self.room.shape.peak))
        wait_for_computing()
        mx.set_cache_limit(max(self.room.working_bytes, _LEAST_CACHE_BYTES) + peaks_bytes)


def limits_of(command: Load, shape: CacheSizes, weight_bytes: int) -> WorkerLimits:
    """The limits that an order to load sets. `shape` has the sizes of the model's caches."""
    room = CacheRoom(
        shape,
        weight_bytes=weight_bytes,
        working_bytes=command.working_bytes,
        working_token_bytes=command.working_token_bytes,
    )
    limits = WorkerLimits(room)
    if command.limit_bytes is not None:
        limits.set_limit(command.limit_bytes, command.beside_bytes)
    return limits


class Context(NamedTuple):
    """The most tokens that a prompt and its answer may have together. If memory bounds them, `note`
    is a sentence for error messages that says why.
    """

    tokens: int
    note: str = ""


class ContextInForce:
    """The context in force, which follows the memory that the model may get. The engine thread
    writes `now`, and the threads that tokenize read `now`.
    """

    def __init__(self, own_tokens: int) -> None:
        """`own_tokens` is the configured context or the model's own, whichever is shorter."""
        self._own_tokens = own_tokens
        self._reason = ""
        self.now = Context(own_tokens)

    def set_bound(self, bound: Bound | None) -> None:
        self._reason = "" if bound is None else bound.reason
        if bound is None or bound.tokens is None or bound.tokens >= self._own_tokens:
            self.now = Context(self._own_tokens)
        else:
            self.now = self._cut(bound.tokens)

    def hopeless(self, sequence: Sequence, room: CacheRoom) -> RequestFailed:
        """The error for a sequence that needs more memory than the process can ever get."""
        context = self._cut(room.longest_tokens(self.now.tokens))
        if not context.tokens:
            return self._no_room(room).as_message(sequence.request_id)
        why = f": it has {len(sequence.token_ids)}"
        return too_long(context, why, "Shorten the prompt.", "prompt").as_message(
            sequence.request_id
        )

    def _no_room(self, room: CacheRoom) -> PromptError:
        least_mb = -(-room.least_bytes // 1_000_000)
        return PromptError(
            "insufficient_memory",
            f"The model is loaded, but not even the shortest request can run: with one it needs "
            f"{least_mb:,} MB. {self._reason} Raise memory.budget, unload pinned models, or take "
            "a smaller model.",
        )

    def _cut(self, tokens: int) -> Context:
        return Context(tokens, f" {self._reason} The model itself could hold {self._own_tokens}.")


def too_long(context: Context, why: str, advice: str, field: RequestField) -> PromptError:
    # Clients recognize this error by its words: LiteLLM by OpenAI's words, which come first, and
    # LangChain by "prompt is too long".
    return PromptError(
        "context_length_exceeded",
        f"This model's maximum context length is {context.tokens} tokens. However, the prompt is "
        f"too long{why}.{context.note} {advice}",
        field,
    )
