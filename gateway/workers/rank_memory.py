"""The memory of a model's ranks: how many bytes other hosts keep for their ranks, when these hosts
are asked for more, and how bytes of one rank become bytes of all ranks on this machine.

No I/O; the caller passes the time, in seconds. At the start each other host keeps the estimated
bytes for a rank. If the process then takes more than the estimate, less is left for sequences. So
the hosts are asked to keep what the next sequence needs, and some more.

Rank 0 knows only its own bytes. All ranks have parts of about the same size, and rank 0 has the
largest part. So bytes in messages of rank 0 are multiplied by the number of ranks, and bytes in
messages to rank 0 are divided by that number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from gateway.system.notation import format_size
from protocol.life import (
    Bound,
    CacheQuarantined,
    Heartbeat,
    Limit,
    Load,
    LoadProgress,
    MlxMemory,
    Need,
    PromptCacheCleared,
    Ready,
)
from protocol.message_base import Message

# Hosts are asked for more in advance, as a sequence that finds no room has to begin anew.
_MARGIN_BYTES: Final = 64_000_000
_AHEAD_BYTES: Final = 256_000_000
# A worker is ended if its sequences wait for longer for memory of other hosts. In this time other
# ranks on these hosts may end.
PATIENCE_S: Final = 60.0


class RankReservation:
    """The bytes that each other host keeps for a rank. No rank may hold more than the smallest of
    these reservations.
    """

    def __init__(self) -> None:
        self._reserved_bytes: dict[int, int] = {}
        self._hosts: dict[int, str] = {}
        self._asked_bytes = 0
        self._least_bytes = 0
        self._waits_since: float | None = None

    def record(self, rank: int, host: str, reserved_bytes: int) -> None:
        """Record that the host keeps `reserved_bytes` for this rank."""
        self._reserved_bytes[rank] = reserved_bytes
        self._hosts[rank] = host

    @property
    def most_bytes(self) -> int | None:
        """The bytes that each rank may hold; None: there is no bound."""
        return min(self._reserved_bytes.values(), default=None)

    @property
    def bound_bytes(self) -> int | None:
        """The most bytes that each rank can get at present, since hosts were asked for more and
        keep no more; None: they were not asked for more.
        """
        most_bytes = self.most_bytes
        return None if most_bytes is None or self._asked_bytes <= most_bytes else most_bytes

    def record_need(self, least_bytes: int, now: float, *, waits: bool) -> None:
        """Note that the next sequence needs a limit of `least_bytes` for each rank. `waits`:
        sequences wait, and none runs.
        """
        self._least_bytes = least_bytes
        if not (waits and self._is_short):
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = now

    @property
    def wish_bytes(self) -> int | None:
        """The bytes that each host is asked to keep for a rank; None: the hosts keep enough."""
        most_bytes = self.most_bytes
        if most_bytes is None or not self._least_bytes:
            return None
        if self._least_bytes + _MARGIN_BYTES <= most_bytes:
            return None
        return self._least_bytes + _AHEAD_BYTES

    def record_wish(self, wish_bytes: int) -> None:
        """Note that all hosts have answered the wish."""
        self._asked_bytes = wish_bytes
        if not self._is_short:
            self._waits_since = None

    def forget_wish(self) -> None:
        """Forget the last wish. The next sequence that needs more memory brings a new one."""
        self._asked_bytes = 0

    def reason_to_end(self, now: float) -> str | None:
        """Why the worker must end: its sequences have waited for memory for too long. None: it may
        go on.
        """
        if self._waits_since is None or now - self._waits_since < PATIENCE_S:
            return None
        return f"its requests waited for memory for {PATIENCE_S:g} s: {self._shortage}"

    def remark(self, requests: int) -> str | None:
        """A sentence about so many requests that wait, if they lack memory of other hosts;
        otherwise None.
        """
        if not requests or not self._is_short:
            return None
        who = "1 request waits" if requests == 1 else f"{requests} requests wait"
        return f"{who} for memory elsewhere: {self._shortage}"

    @property
    def _is_short(self) -> bool:
        return self.most_bytes is not None and self._least_bytes > self.most_bytes

    @property
    def _shortage(self) -> str:
        rank, reserved_bytes = min(self._reserved_bytes.items(), key=lambda item: item[1])
        return (
            f"{self._hosts[rank]} keeps {format_size(reserved_bytes)} for a rank, and "
            f"{format_size(self._least_bytes)} are needed"
        )


# The fields with bytes, by types of messages. In messages from and to rank 0 these are bytes of one
# rank; elsewhere in the gateway they are bytes of all ranks.
SCALED: Final[dict[type[Message], tuple[str, ...]]] = {
    CacheQuarantined: ("blocks_bytes",),
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
    """A message of rank 0, with its bytes multiplied by `ranks`."""
    return _scaled(message, lambda bytes_: bytes_ * ranks) if ranks > 1 else message


def for_each_rank(message: _M, ranks: int) -> _M:
    """A message for rank 0, with its bytes divided by `ranks`."""
    return _scaled(message, lambda bytes_: bytes_ // ranks) if ranks > 1 else message


def capped(message: _M, most_bytes: int | None, bound_bytes: int | None) -> _M:
    """The message, with its limit cut to `most_bytes`, the bytes that other hosts keep for a rank,
    and its bound cut to `bound_bytes`.
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
