"""Linux: /proc/meminfo and pressure stall information."""

from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import Final

from gateway.system.memory.reading import HostError, Pressure

_ZONEINFO: Final = Path("/proc/zoneinfo")
# Within "pagesets", one per CPU and zone.
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
    counted = [int(each.split()[1]) * 1024 for each in lines if each.startswith(_WIRED)]
    if len(counted) != len(_WIRED):
        raise HostError(f"{meminfo} lacks one of {', '.join(_WIRED)}")
    return sum(counted)


def unlisted_free_bytes(zoneinfo: Path = _ZONEINFO) -> int:
    """Free pages that the kernel keeps for each CPU: hundreds of megabytes since Linux 6.7, and in
    neither MemFree nor MemAvailable. Raises: HostError.
    """
    text = _read(zoneinfo)
    return sum(map(int, _PER_CPU.findall(text))) * resource.getpagesize()


def pressure(stalls: Path = _PRESSURE) -> Pressure:
    """Raises: HostError where the kernel keeps no pressure stall information."""
    averages = {kind: float(value) for kind, value in _AVERAGE.findall(_read(stalls))}
    if set(averages) != {"some", "full"}:
        raise HostError(f"{stalls} has no averages")
    if averages["full"] >= _FULL_CRITICAL:
        return "critical"
    return "warn" if averages["some"] >= _SOME_WARN else "normal"


def wired_limit_mb() -> int | None:
    """There is no such limit."""
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except OSError as error:
        raise HostError(f"{path}: {error.strerror}") from error
