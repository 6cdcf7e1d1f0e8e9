"""macOS: psutil for wired pages, and the kernel's own word for pressure."""

from __future__ import annotations

import ctypes
import os
from typing import Final

import psutil

from gateway.memory.reading import HostError, Pressure

# What launchd's and the kernel's memorystatus code calls them (xnu bsd/sys/event.h,
# NOTE_MEMORYSTATUS_PRESSURE_*); readable without privilege.
_LEVELS: Final[dict[int, Pressure]] = {1: "normal", 2: "warn", 4: "critical"}
_NAME: Final = b"kern.memorystatus_vm_pressure_level"


class Sysctl:
    """The one call, on a library that tests can replace by a compiled stub."""

    def __init__(self, path: str | None = None) -> None:
        library = ctypes.CDLL(path, use_errno=True)
        self._sysctlbyname = library.sysctlbyname
        self._sysctlbyname.argtypes = (
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_size_t),
            ctypes.c_void_p,
            ctypes.c_size_t,
        )
        self._sysctlbyname.restype = ctypes.c_int

    def pressure(self) -> Pressure:
        """Raises: HostError."""
        value = ctypes.c_int(0)
        size = ctypes.c_size_t(ctypes.sizeof(value))
        status = self._sysctlbyname(_NAME, ctypes.byref(value), ctypes.byref(size), None, 0)
        if status != 0:
            raise HostError(f"{_NAME.decode()}: {os.strerror(ctypes.get_errno())}")
        if value.value not in _LEVELS:
            raise HostError(f"{_NAME.decode()} is {value.value}")
        return _LEVELS[value.value]


_sysctl: Sysctl | None = None


def pressure() -> Pressure:
    """As `Sysctl.pressure`, on the system's library."""
    global _sysctl
    if _sysctl is None:
        _sysctl = Sysctl()
    return _sysctl.pressure()


def unlisted_free_bytes() -> int:
    """There are none: psutil's figure has all free pages."""
    return 0


def wired_bytes() -> int:
    """vm_statistics64.wire_count, through psutil. Raises: HostError."""
    wired = getattr(psutil.virtual_memory(), "wired", None)
    if not isinstance(wired, int):
        raise HostError("psutil tells no wired memory")
    return wired
