"""macOS: proc_pid_rusage of libproc, which is part of libSystem."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Final

from gateway.system.memory.reading import Footprint, FootprintError

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
    """The one call, on a library that tests can replace by a compiled stub."""

    def __init__(self, path: str | None = None) -> None:
        # None: the symbols of this process, which libSystem is always among.
        library = ctypes.CDLL(path, use_errno=True)
        self._proc_pid_rusage = library.proc_pid_rusage
        self._proc_pid_rusage.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
        self._proc_pid_rusage.restype = ctypes.c_int

    def footprint(self, pid: int) -> Footprint:
        """phys_footprint of a process.

        Raises:
            FootprintError: no such process (ESRCH), another user's (EPERM), or one that exits: for
                a zombie the call succeeds and says 0 before the memory is torn down.
        """
        info = self._usage(pid)
        if info.ri_proc_exit_abstime != 0:
            raise FootprintError(f"pid {pid}: it is exiting")
        return Footprint(
            host_bytes=info.ri_phys_footprint,
            host_peak_bytes=info.ri_lifetime_max_phys_footprint,
        )

    def started(self, pid: int) -> int:
        """When a process has started, in ticks of mach_absolute_time, which no change of the clock
        touches; psutil's create_time moves with it.

        Raises:
            FootprintError: no such process (ESRCH), or another user's (EPERM).
        """
        return int(self._usage(pid).ri_proc_start_abstime)

    def _usage(self, pid: int) -> RusageInfoV4:
        info = RusageInfoV4()
        if self._proc_pid_rusage(pid, RUSAGE_INFO_V4, ctypes.byref(info)) != 0:
            raise FootprintError(f"pid {pid}: {os.strerror(ctypes.get_errno())}")
        return info


@functools.cache
def _libproc() -> LibProc:
    """On the system's library."""
    return LibProc()


def footprint(pid: int) -> Footprint:
    """As `LibProc.footprint`."""
    return _libproc().footprint(pid)


class FootprintGauge:
    """The footprint of one process that is asked for every second: here that costs microseconds."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def read(self) -> Footprint:
        """Raises: FootprintError."""
        return footprint(self._pid)


def started(pid: int) -> int:
    """As `LibProc.started`."""
    return _libproc().started(pid)
