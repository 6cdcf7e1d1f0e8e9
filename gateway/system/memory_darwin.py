"""macOS: footprints by proc_pid_rusage of libproc, the machine's memory by sysctl and psutil."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Collection
from typing import Final

import psutil

from gateway.system.memory_reading import Footprint, FootprintError, HostError, Pressure

RUSAGE_INFO_V4: Final = 4


class RusageInfoV4(ctypes.Structure):
    """struct rusage_info_v4 of <sys/resource.h> (xnu bsd/sys/resource.h), 296 bytes."""

    _fields_ = (
        ("ri_uuid", ctypes.c_uint8 * 16),
        *(
            (name, ctypes.c_uint64)
            for name in (
                "ri_user_time",
                "ri_system_time",
                "ri_pkg_idle_wkups",
                "ri_interrupt_wkups",
                "ri_pageins",
                "ri_wired_size",
                "ri_resident_size",
                "ri_phys_footprint",
                "ri_proc_start_abstime",
                "ri_proc_exit_abstime",
                "ri_child_user_time",
                "ri_child_system_time",
                "ri_child_pkg_idle_wkups",
                "ri_child_interrupt_wkups",
                "ri_child_pageins",
                "ri_child_elapsed_abstime",
                "ri_diskio_bytesread",
                "ri_diskio_byteswritten",
                "ri_cpu_time_qos_default",
                "ri_cpu_time_qos_maintenance",
                "ri_cpu_time_qos_background",
                "ri_cpu_time_qos_utility",
                "ri_cpu_time_qos_legacy",
                "ri_cpu_time_qos_user_initiated",
                "ri_cpu_time_qos_user_interactive",
                "ri_billed_system_time",
                "ri_serviced_system_time",
                "ri_logical_writes",
                "ri_lifetime_max_phys_footprint",
                "ri_instructions",
                "ri_cycles",
                "ri_billed_energy",
                "ri_serviced_energy",
                "ri_interval_max_phys_footprint",
                "ri_runnable_time",
            )
        ),
    )


class LibProc:
    """proc_pid_rusage, of a library that tests can replace by a compiled stub."""

    def __init__(self, path: str | None = None) -> None:
        # None: the symbols of this process, which always include libSystem's.
        library = ctypes.CDLL(path, use_errno=True)
        self._proc_pid_rusage = library.proc_pid_rusage
        self._proc_pid_rusage.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
        self._proc_pid_rusage.restype = ctypes.c_int

    def footprint(self, pid: int) -> Footprint:
        """phys_footprint of a process.

        Raises:
            FootprintError: there is no such process (ESRCH), it is another user's (EPERM), or it is
                exiting. For a zombie proc_pid_rusage gives 0, even before the memory is freed.
        """
        info = self._usage(pid)
        if info.ri_proc_exit_abstime != 0:
            raise FootprintError(f"pid {pid}: it is exiting")
        return Footprint(
            host_bytes=info.ri_phys_footprint,
            host_peak_bytes=info.ri_lifetime_max_phys_footprint,
        )

    def started(self, pid: int) -> int:
        """When a process has started, in ticks of mach_absolute_time. Unlike psutil's create_time,
        this time doesn't change when the clock is set.

        Raises:
            FootprintError: there is no such process (ESRCH), or it is another user's (EPERM).
        """
        return int(self._usage(pid).ri_proc_start_abstime)

    def _usage(self, pid: int) -> RusageInfoV4:
        info = RusageInfoV4()
        if self._proc_pid_rusage(pid, RUSAGE_INFO_V4, ctypes.byref(info)) != 0:
            raise FootprintError(f"pid {pid}: {os.strerror(ctypes.get_errno())}")
        return info


@functools.cache
def _libproc() -> LibProc:
    """The functions of the system's library."""
    return LibProc()


def footprint(pid: int) -> Footprint:
    """As `LibProc.footprint`."""
    return _libproc().footprint(pid)


def mapped_bytes(pid: int, files: Collection[str]) -> int:
    """0: macOS doesn't tell cheaply which pages of a file a process has mapped."""
    return 0


class DarwinFootprintGauge:
    """Reads the footprint of one process. A reading takes microseconds."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def read(self) -> Footprint:
        """Raises: FootprintError."""
        return footprint(self._pid)


def started(pid: int) -> int:
    """As `LibProc.started`."""
    return _libproc().started(pid)


# More than any text here has. If a text were longer, the kernel would fail, and not cut it.
_TEXT_BYTES: Final = 128


# The levels of the kernel's memorystatus code (xnu bsd/sys/event.h,
# NOTE_MEMORYSTATUS_PRESSURE_*), which any account may read.
_LEVELS: Final[dict[int, Pressure]] = {1: "normal", 2: "warn", 4: "critical"}
_PRESSURE: Final = "kern.memorystatus_vm_pressure_level"
# The memory that the GPU may wire, in MiB; 0 is the system's own choice.
_WIRED_LIMIT: Final = "iogpu.wired_limit_mb"


class Sysctl:
    """sysctlbyname, of a library that tests can replace by a compiled stub."""

    def __init__(self, path: str | None = None) -> None:
        # None: the symbols of this process, which always include libSystem's.
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

    def text(self, name: str) -> str:
        """Raises: OSError."""
        value = ctypes.create_string_buffer(_TEXT_BYTES)
        self._read(name, value)
        return value.value.decode("ascii", "replace")

    def number(self, name: str, value: ctypes.c_int | ctypes.c_int64) -> int:
        """Raises: HostError. `value` must be zero, and as wide as the kernel's number."""
        try:
            self._read(name, value)
        except OSError as error:
            raise HostError(str(error.strerror)) from error
        return value.value

    def pressure(self) -> Pressure:
        """Raises: HostError."""
        level = self.number(_PRESSURE, ctypes.c_int(0))
        if level not in _LEVELS:
            raise HostError(f"{_PRESSURE} is {level}")
        return _LEVELS[level]

    def wired_limit_mb(self) -> int:
        """Raises: HostError: there is no such GPU."""
        # No header declares the width. A 64-bit number that is 0 can take 32 bits as well.
        return self.number(_WIRED_LIMIT, ctypes.c_int64(0))

    def _read(
        self, name: str, value: ctypes.c_int | ctypes.c_int64 | ctypes.Array[ctypes.c_char]
    ) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        encoded = name.encode("ascii")
        if self._sysctlbyname(encoded, ctypes.byref(value), ctypes.byref(size), None, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")


@functools.cache
def _sysctl() -> Sysctl:
    """The functions of the system's library."""
    return Sysctl()


def pressure() -> Pressure:
    """As `Sysctl.pressure`."""
    return _sysctl().pressure()


def wired_limit_mb() -> int | None:
    """As `Sysctl.wired_limit_mb`."""
    return _sysctl().wired_limit_mb()


def unlisted_free_bytes() -> int:
    """0, since psutil's figure of available memory includes all free pages."""
    return 0


def wired_bytes() -> int:
    """vm_statistics64.wire_count, through psutil. Raises: HostError."""
    wired = getattr(psutil.virtual_memory(), "wired", None)
    if not isinstance(wired, int):
        raise HostError("psutil tells no wired memory")
    return wired
