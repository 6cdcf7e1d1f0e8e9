"""The memory of a model's ranks: the bytes that other hosts keep for ranks there, when those hosts
are asked for more, and how bytes of one rank become bytes of all ranks on this machine.

No I/O; the caller brings the time, in seconds. At the start each host keeps the estimated bytes. A
process may take more than the estimate, which leaves less to its sequences: so other hosts are
asked for what the next sequence needs, and for some more.

Rank 0 knows its own bytes alone. Ranks have parts of like size, of which rank 0's is the largest.
So bytes in messages of rank 0 are multiplied, and bytes in messages to it are divided.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from gateway.system.notation import format_size
from protocol.life import (
    Bound,
    Heartbeat,
    Limit,
    Load,
    LoadProgress,
    MlxMemory,
    Need,
    PromptCacheCleared,
    Ready,
)
from protocol.message import Message

# More is asked for in advance, as a sequence without room begins anew.
_MARGIN_BYTES: Final = 64_000_000
_AHEAD_BYTES: Final = 256_000_000
# Other ranks there may end meanwhile. A worker whose sequences wait for longer is ended.
PATIENCE_S: Final = 60.0


class RankReservation:
    """The bytes that hosts keep for one rank each. No rank may hold more than the least of them."""

    def __init__(self) -> None:
        self._kept_bytes: dict[int, int] = {}
        self._hosts: dict[int, str] = {}
        self._asked_bytes = 0
        self._least_bytes = 0
        self._waits_since: float | None = None

    def keeps(self, rank: int, host: str, kept_bytes: int) -> None:
        """The host of this rank keeps so many bytes for it."""
        self._kept_bytes[rank] = kept_bytes
        self._hosts[rank] = host

    @property
    def most_bytes(self) -> int | None:
        """The bytes that each rank may hold; None: there is no bound."""
        return min(self._kept_bytes.values(), default=None)

    @property
    def bound_bytes(self) -> int | None:
        """The most bytes that each rank can get; None: hosts were not asked for more yet."""
        most_bytes = self.most_bytes
        return None if most_bytes is None or self._asked_bytes <= most_bytes else most_bytes

    def need(self, least_bytes: int, now: float, *, waits: bool) -> None:
        """The next sequence could go on with so many bytes. `waits`: no sequence runs meanwhile."""
        self._least_bytes = least_bytes
        if not (waits and self._is_short):
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = now

    @property
    def wish_bytes(self) -> int | None:
        """The bytes that each host is asked to keep; None: it keeps enough."""
        most_bytes = self.most_bytes
        if most_bytes is None or not self._least_bytes:
            return None
        if self._least_bytes + _MARGIN_BYTES <= most_bytes:
            return None
        return self._least_bytes + _AHEAD_BYTES

    def asked(self, wish_bytes: int) -> None:
        """All hosts have answered."""
        self._asked_bytes = wish_bytes
        if not self._is_short:
            self._waits_since = None

    def forget(self) -> None:
        """No sequence needs more: the next one that does asks anew."""
        self._asked_bytes = 0

    def given_up(self, now: float) -> str | None:
        """Why the worker is to end: sequences have waited in vain for too long. None: it isn't."""
        if self._waits_since is None or now - self._waits_since < PATIENCE_S:
            return None
        return f"its requests waited for memory for {PATIENCE_S:g} s: {self._shortage}"

    def remark(self, requests: int) -> str | None:
        """A sentence, if so many requests wait for memory of these hosts; None: they don't."""
        if not requests or not self._is_short:
            return None
        who = "1 request waits" if requests == 1 else f"{requests} requests wait"
        return f"{who} for memory elsewhere: {self._shortage}"

    @property
    def _is_short(self) -> bool:
        return self.most_bytes is not None and self._least_bytes > self.most_bytes

    @property
    def _shortage(self) -> str:
        rank, kept_bytes = min(self._kept_bytes.items(), key=lambda each: each[1])
        return (
            f"{self._hosts[rank]} keeps {format_size(kept_bytes)} for a rank, and "
            f"{format_size(self._least_bytes)} are needed"
        )


# The fields that are of one rank in messages of rank 0 and to it, and of all ranks elsewhere.
SCALED: Final[dict[type[Message], tuple[str, ...]]] = {
    Heartbeat: ("memory", "prompt_cache_bytes"),
    Limit: ("limit_bytes", "beside_bytes", "bound"),
    Load: ("limit_bytes", "beside_bytes", "working_bytes", "working_token_bytes", "bound"),
    LoadProgress: ("loaded_bytes", "total_bytes"),
    Need: (
        *("limit_bytes", "used_bytes", "wanted_bytes", "least_bytes"),
        *("cache_bytes", "cache_wanted_bytes"),
    ),
    PromptCacheCleared: ("reclaimed_bytes",),
    Ready: ("weight_bytes", "memory"),
}

_M = TypeVar("_M", bound=Message)


def for_all_ranks(message: _M, ranks: int) -> _M:
    """A message of rank 0, as of so many ranks."""
    return _scaled(message, lambda bytes_: bytes_ * ranks) if ranks > 1 else message


def for_each_rank(message: _M, ranks: int) -> _M:
    """A message to all ranks, as to one."""
    return _scaled(message, lambda bytes_: bytes_ // ranks) if ranks > 1 else message


def capped(message: _M, most_bytes: int | None, bound_bytes: int | None) -> _M:
    """The message with a limit of at most `most_bytes`, which other hosts keep for a rank, and a
    bound of at most `bound_bytes`.
    """
    if most_bytes is None or not isinstance(message, Limit | Load):
        return message
    limit_bytes, bound = message.limit_bytes, message.bound
    if bound is not None and bound_bytes is not None and bound.bytes > bound_bytes:
        reason = f"Another host keeps no more than {format_size(bound_bytes)} for a rank of it."
        bound = msgspec.structs.replace(bound, bytes=bound_bytes, reason=reason)
    if limit_bytes is not None:
        limit_bytes = min(limit_bytes, most_bytes)
    return msgspec.structs.replace(message, limit_bytes=limit_bytes, bound=bound)


def _scaled(message: _M, scale: Callable[[int], int]) -> _M:
    if not (names := SCALED.get(type(message), ())):
        return message
    changes = {name: _scaled_value(getattr(message, name), scale) for name in names}
    return msgspec.structs.replace(message, **changes)


def _scaled_value(
    value: int | Bound | MlxMemory | None, scale: Callable[[int], int]
) -> int | Bound | MlxMemory | None:
    match value:
        case None:
            return None
        case Bound(bytes=bytes_):
            return msgspec.structs.replace(value, bytes=scale(bytes_))
        case MlxMemory():
            return MlxMemory(
                active_bytes=scale(value.active_bytes),
                cache_bytes=scale(value.cache_bytes),
                peak_bytes=scale(value.peak_bytes),
            )
        case int():
            return scale(value)
