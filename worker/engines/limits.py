"""The memory limit that the gateway gives: its effect on MLX, and on the longest prompt."""

from __future__ import annotations

from typing import Final, NamedTuple

import mlx.core as mx

from protocol.answers import RequestFailed, RequestField
from protocol.life import Bound, Load
from worker.engines.room import CacheRoom, CacheSizes
from worker.engines.sequence import Sequence
from worker.system.errors import PromptError
from worker.system.memory import wait_for_computing

# MLX's limit is a guard rail above the limit that the engine keeps to. Beyond MLX's limit each
# command buffer is waited for, and each allocation that the buffer cache can't serve empties that
# cache (mlx transforms.cpp, allocator.cpp).
_GUARD_SHARE: Final = 0.1
_LEAST_GUARD_BYTES: Final = 256_000_000
# With a smaller buffer cache each step would allocate its temporaries anew.
_LEAST_CACHE_BYTES: Final = 32_000_000
# More bytes than any machine has.
_LARGEST_BYTES: Final = 1 << 62


class MemoryLimits:
    """The memory limits of a worker with a model. The engine keeps to `room`, and MLX's limits
    follow from `room`.
    """

    def __init__(self, room: CacheRoom) -> None:
        self.room = room
        self._least_beside_bytes = _LARGEST_BYTES

    def take(self, limit_bytes: int, beside_bytes: int) -> None:
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


def limits_of(command: Load, shape: CacheSizes, weight_bytes: int) -> MemoryLimits:
    """The limits that an order to load sets. `shape` has the sizes of the model's caches."""
    room = CacheRoom(
        shape,
        weight_bytes=weight_bytes,
        working_bytes=command.working_bytes,
        working_token_bytes=command.working_token_bytes,
    )
    limits = MemoryLimits(room)
    if command.limit_bytes is not None:
        limits.take(command.limit_bytes, command.beside_bytes)
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

    def take(self, bound: Bound | None) -> None:
        self._reason = "" if bound is None else bound.reason
        if bound is None or bound.tokens is None or bound.tokens >= self._own_tokens:
            self.now = Context(self._own_tokens)
        else:
            self.now = self._cut(bound.tokens)

    def hopeless(self, sequence: Sequence, room: CacheRoom) -> RequestFailed:
        """The error for a sequence that needs more memory than the process can ever get."""
        context = self._cut(room.longest_tokens(self.now.tokens))
        if not context.tokens:
            return self._no_room(room).told(sequence.request_id)
        why = f": it has {len(sequence.token_ids)}"
        return too_long(context, why, "Shorten the prompt.", "prompt").told(sequence.request_id)

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
