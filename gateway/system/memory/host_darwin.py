"""macOS: psutil for wired pages, and the kernel's own word for pressure."""

from __future__ import annotations

import ctypes
import functools
from typing import Final

import psutil

from gateway.system.memory.reading import HostError, Pressure
from gateway.system.sysctl_darwin import SysctlByName

# What launchd's and the kernel's memorystatus code calls them (xnu bsd/sys/event.h,
# NOTE_MEMORYSTATUS_PRESSURE_*); readable without privilege.
_LEVELS: Final[dict[int, Pressure]] = {1: "normal", 2: "warn", 4: "critical"}
_PRESSURE: Final = "kern.memorystatus_vm_pressure_level"
# What the GPU may wire, in MiB; 0 is the system's own choice.
_WIRED_LIMIT: Final = "iogpu.wired_limit_mb"


class Sysctl:
    """What it tells of memory, on a library that tests can replace by a compiled stub."""

    def __init__(self, path: str | None = None) -> None:
        self._sysctl = SysctlByName(path)

    def pressure(self) -> Pressure:
        """Raises: HostError."""
        level = self._read(_PRESSURE, ctypes.c_int(0))
        if level not in _LEVELS:
            raise HostError(f"{_PRESSURE} is {level}")
        return _LEVELS[level]

    def wired_limit_mb(self) -> int:
        """Raises: HostError where there is no such GPU."""
        # Zeroed and wide enough for either width, as no header declares it.
        return self._read(_WIRED_LIMIT, ctypes.c_int64(0))

    def _read(self, name: str, value: ctypes.c_int | ctypes.c_int64) -> int:
        try:
            return self._sysctl.number(name, value)
        except OSError as error:
            raise HostError(str(error.strerror)) from error


@functools.cache
def _sysctl() -> Sysctl:
    """On the system's library."""
    return Sysctl()


def pressure() -> Pressure:
    """As `Sysctl.pressure`."""
    return _sysctl().pressure()


def wired_limit_mb() -> int | None:
    """As `Sysctl.wired_limit_mb`."""
    return _sysctl().wired_limit_mb()


def unlisted_free_bytes() -> int:
    """There are none: psutil's figure has all free pages."""
    return 0


def wired_bytes() -> int:
    """vm_statistics64.wire_count, through psutil. Raises: HostError."""
    wired = getattr(psutil.virtual_memory(), "wired", None)
    if not isinstance(wired, int):
        raise HostError("psutil tells no wired memory")
    return wired
