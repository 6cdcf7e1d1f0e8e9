"""Linux: footprints, and the machine's memory by /proc/meminfo and pressure stall information.

A footprint corresponds to macOS's phys_footprint: anonymous, shared and swapped memory. The
process's memory on NVIDIA's cards is a figure of its own.
"""

from __future__ import annotations

import math
import re
import resource
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from gateway.system.memory_reading import Footprint, FootprintError, HostError, Pressure

# The fields that make up a footprint. Clean file pages are left out, as in phys_footprint.
_COUNTED: Final = ("Pss_Anon", "Pss_Shmem", "SwapPss")
# A mapping and its path (proc_pid_smaps(5)).
_MAPPING: Final = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)$")
# The device files of NVIDIA's driver, and of WSL's. A driver may be loaded at its first use.
_DRIVERS: Final = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
# A gauge ignores a smaller change of the kernel's counters, but only for some seconds.
_MOVED_BYTES: Final = 1 << 20
_READ_AGAIN_S: Final = 10.0


def footprint(pid: int) -> Footprint:
    """Read /proc/PID/smaps_rollup: milliseconds for gigabytes, so never on the event loop.

    Raises:
        FootprintError: there is no such process, it may not be read, it is exiting, or its memory
            on NVIDIA's cards isn't known although there is a driver.
    """
    return _footprint(pid, _host_bytes(pid))


class LinuxFootprintGauge:
    """Reads the footprint of one process; cheap enough for every second.

    To count shared pages Linux walks all pages of a process. That takes some milliseconds of
    processor time for each gigabyte, and holds the lock of the process's memory. The counters in
    /proc/PID/status cost nothing, and show whether the memory has changed.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._counted_bytes = 0
        self._host_bytes = 0
        self._read_at = -math.inf

    def read(self) -> Footprint:
        """As `footprint`, but a change of less than a megabyte may be seen ten seconds late.

        Raises: FootprintError.
        """
        fields = _fields(self._pid, "status", ("RssAnon", "RssShmem", "VmSwap"))
        counted_bytes = sum(fields.values())
        now = time.monotonic()
        moved_bytes = abs(counted_bytes - self._counted_bytes)
        if moved_bytes >= _MOVED_BYTES or now - self._read_at >= _READ_AGAIN_S:
            self._host_bytes = _host_bytes(self._pid)
            self._counted_bytes, self._read_at = counted_bytes, now
        return _footprint(self._pid, self._host_bytes)


def mapped_bytes(pid: int, files: Collection[str]) -> int:
    """The resident pages that a process has mapped of these files, given by their real paths; a
    page that several processes have is shared out among them. 0: there is no such process, or it
    may not be read. Takes as long as a footprint.
    """
    total_bytes, counts = 0, False
    try:
        with Path(f"/proc/{pid}/smaps").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if (mapping := _MAPPING.match(line)) is not None:
                    counts = mapping[1] in files
                elif counts and line.startswith("Pss:"):
                    total_bytes += int(line.split()[1]) * 1024
    except OSError:
        return 0
    return total_bytes


def has_driver() -> bool:
    """Whether this machine has an NVIDIA driver, so that processes may use cards."""
    return any(driver.exists() for driver in _DRIVERS)


def _footprint(pid: int, host_bytes: int) -> Footprint:
    peak_bytes = max(host_bytes, _host_peak_bytes(pid))
    return Footprint(host_bytes, peak_bytes, card_bytes=_card_bytes(pid))


def _host_bytes(pid: int) -> int:
    return sum(_fields(pid, "smaps_rollup", _COUNTED).values())


def _host_peak_bytes(pid: int) -> int:
    """The highest resident size so far, less the file pages that are resident now: these are mostly
    libraries, and stay resident. Linux keeps no other peak.
    """
    counted = _fields(pid, "status", ("VmHWM", "RssFile"))
    return counted["VmHWM"] - counted["RssFile"]


def _fields(pid: int, name: str, wanted: tuple[str, ...]) -> dict[str, int]:
    """The `wanted` fields of the file `name` in /proc/PID, in bytes."""
    try:
        text = Path(f"/proc/{pid}/{name}").read_text("utf-8", "replace")
    except OSError as error:
        raise FootprintError(f"pid {pid}: {error.strerror}") from error
    fields = {
        field: int(rest.split()[0]) * 1024
        for field, _, rest in (line.partition(":") for line in text.splitlines())
        if field in wanted
    }
    if len(fields) != len(wanted):
        # A zombie has no mappings.
        raise FootprintError(f"pid {pid}: it has no memory map, it is exiting")
    return fields


def _card_bytes(pid: int) -> int:
    if not has_driver():
        return 0
    # This module is slow to import, and useful only where there is a driver.
    from gateway.system.memory_nvidia import card_bytes

    return card_bytes(pid)


_ZONEINFO: Final = Path("/proc/zoneinfo")
# The free pages that one CPU has of one zone, in the part "pagesets".
_PER_CPU: Final = re.compile(r"^\s+count:\s+(\d+)$", re.MULTILINE)
_MEMINFO: Final = Path("/proc/meminfo")
_PRESSURE: Final = Path("/proc/pressure/memory")
# Pages that can't be reclaimed: locked ones and the kernel's own (proc_meminfo(5)).
_WIRED: Final = ("Mlocked:", "SUnreclaim:", "KernelStack:", "PageTables:")
# Shares of the last ten seconds in which some, or all, tasks waited for memory, in percent
# (Documentation/accounting/psi.rst).
_SOME_WARN: Final = 10.0
_FULL_CRITICAL: Final = 10.0
_AVERAGE: Final = re.compile(r"^(some|full) avg10=([\d.]+)", re.MULTILINE)


def wired_bytes(meminfo: Path = _MEMINFO) -> int:
    """Raises: HostError."""
    lines = _read(meminfo).splitlines()
    counted = [int(line.split()[1]) * 1024 for line in lines if line.startswith(_WIRED)]
    if len(counted) != len(_WIRED):
        raise HostError(f"{meminfo} lacks one of {', '.join(_WIRED)}")
    return sum(counted)


def unlisted_free_bytes(zoneinfo: Path = _ZONEINFO) -> int:
    """Free pages that the kernel keeps for each CPU: hundreds of megabytes since Linux 6.7, which
    neither MemFree nor MemAvailable includes. Raises: HostError.
    """
    text = _read(zoneinfo)
    return sum(map(int, _PER_CPU.findall(text))) * resource.getpagesize()


def pressure(stalls: Path = _PRESSURE) -> Pressure:
    """Raises: HostError: the kernel keeps no pressure stall information."""
    averages = {kind: float(value) for kind, value in _AVERAGE.findall(_read(stalls))}
    if set(averages) != {"some", "full"}:
        raise HostError(f"{stalls} has no averages")
    if averages["full"] >= _FULL_CRITICAL:
        return "critical"
    return "warn" if averages["some"] >= _SOME_WARN else "normal"


def wired_limit_mb() -> int | None:
    """None: Linux has no such limit."""
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except OSError as error:
        raise HostError(f"{path}: {error.strerror}") from error
