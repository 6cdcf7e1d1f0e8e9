"""Bytes of one rank and of all that are on this machine.

Rank 0 speaks of itself alone. Ranks have parts of like size, of which its own is the largest, so
what it says is multiplied, and what it is told divided.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from gateway.system.notation import format_size
from protocol.life import Heartbeat, Load, LoadProgress, PromptCacheCleared, Ready
from protocol.memory import Bound, Limit, MlxMemory, Need
from protocol.message import Message

# The fields that are of one rank in what rank 0 says and is told, and of all of them elsewhere.
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


def of_all(message: _M, ranks: int) -> _M:
    """What rank 0 said, as of so many ranks."""
    return _scaled(message, lambda bytes_: bytes_ * ranks) if ranks > 1 else message


def of_each(message: _M, ranks: int) -> _M:
    """What all are to be told, as of one."""
    return _scaled(message, lambda bytes_: bytes_ // ranks) if ranks > 1 else message


def within(message: _M, most_bytes: int | None, bound_bytes: int | None) -> _M:
    """With no more for each rank than other hosts keep for one of theirs, and `bound_bytes` at
    best.
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
