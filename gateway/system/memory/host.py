"""What the whole machine has: total, available and wired memory, and how hard it is pressed."""

from __future__ import annotations

import sys

import psutil
from msgspec import Struct

from gateway.system.memory.reading import HostError, Pressure


class HostMemory(Struct, frozen=True):
    """Bytes. `wired_bytes` can't be paged out; a figure that the system doesn't tell is None."""

    total_bytes: int
    available_bytes: int
    wired_bytes: int | None
    pressure: Pressure | None


if sys.platform == "darwin":
    from gateway.system.memory.host_darwin import (
        pressure,
        unlisted_free_bytes,
        wired_bytes,
        wired_limit_mb,
    )
else:
    from gateway.system.memory.host_linux import (
        pressure,
        unlisted_free_bytes,
        wired_bytes,
        wired_limit_mb,
    )

__all__ = ["HostMemory", "host_memory", "wired_limit_mb"]


def host_memory() -> HostMemory:
    """Read it; blocks for a fraction of a millisecond."""
    memory = psutil.virtual_memory()
    try:
        wired: int | None = wired_bytes()
    except HostError:
        wired = None
    try:
        level: Pressure | None = pressure()
    except HostError:
        level = None
    try:
        unlisted = unlisted_free_bytes()
    except HostError:
        unlisted = 0
    return HostMemory(memory.total, memory.available + unlisted, wired, level)
