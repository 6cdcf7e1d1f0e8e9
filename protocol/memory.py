"""What a worker may hold, and what it could use."""

from __future__ import annotations

from msgspec import Struct

from protocol.message import Message


class MlxMemory(Struct, frozen=True, kw_only=True):
    """MLX's own account of its allocations, in bytes."""

    active_bytes: int = 0
    cache_bytes: int = 0
    peak_bytes: int = 0


class Bound(Struct, frozen=True):
    """The most that a process can get at present, whoever gives it back: in bytes, and as tokens of
    one sequence (None: nobody could tell). `reason` is a sentence that says why it is no more.
    """

    bytes: int
    tokens: int | None
    reason: str


class Limit(Message, frozen=True, tag="limit"):
    """The process may hold so much from now on: more was lent, or some of it is called back. Its
    bound may be another, too.

    It is obeyed between two steps, and answered by a `Need` with this limit and with the context
    that follows from the bound. Sequences that wait for more than the bound fail.
    """

    limit_bytes: int
    beside_bytes: int
    bound: Bound | None = None


class Need(Message, frozen=True, tag="need"):
    """What the worker could use, as limits of its process in bytes; 0 while it has nothing to do.

    It keeps to `limit_bytes`, and takes no new sequence longer than `context_tokens`. `used_bytes`
    holds what runs now; with `wanted_bytes` everything that waits could run too; with less than
    `least_bytes` not even its first sequence can. `held` are the sequences that wait for memory
    alone. `prompt` numbers the prompt that its first sequence is computing, over several steps; 0
    if it computes none.

    The prompt cache has `cache_bytes` beside that, and could use `cache_wanted_bytes`: bytes of its
    own, not limits.
    """

    limit_bytes: int
    used_bytes: int
    wanted_bytes: int
    least_bytes: int
    held: int
    context_tokens: int
    prompt: int = 0
    cache_bytes: int = 0
    cache_wanted_bytes: int = 0
