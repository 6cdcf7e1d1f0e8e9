"""The Linux twin of macOS's phys_footprint: anonymous and shared memory, and what is swapped.

Beside it, what NVIDIA cards hold of the process.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Final

from gateway.system.memory.reading import Footprint, FootprintError

# Clean file pages are left out, as in phys_footprint.
_COUNTED: Final = ("Pss_Anon", "Pss_Shmem", "SwapPss")
# There while a driver is: NVIDIA's own, and that of WSL. It may be loaded at its first use.
_DRIVERS: Final = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
# What a gauge lets pass, and for how long.
_MOVED_BYTES: Final = 1 << 20
_READ_AGAIN_S: Final = 10.0


def footprint(pid: int) -> Footprint:
    """Read /proc/PID/smaps_rollup: milliseconds for gigabytes, so never on the event loop.

    Raises:
        FootprintError: no such process, no permission, a process that is exiting, or one whose
            memory on NVIDIA devices isn't known although there is a driver.
    """
    return _footprint(pid, _host_bytes(pid))


class FootprintGauge:
    """The footprint of one process that is asked for every second.

    Linux counts shared pages by walking all of a process's, for as long as some milliseconds of
    processor time for each gigabyte, and keeps its memory's lock meanwhile. Its own counters of
    pages cost nothing and tell whether there is anything new.
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


def has_driver() -> bool:
    """Whether processes may use NVIDIA cards here."""
    return any(each.exists() for each in _DRIVERS)


def _footprint(pid: int, host_bytes: int) -> Footprint:
    peak_bytes = max(host_bytes, _host_peak_bytes(pid))
    return Footprint(host_bytes, peak_bytes, card_bytes=_card_bytes(pid))


def _host_bytes(pid: int) -> int:
    return sum(_fields(pid, "smaps_rollup", _COUNTED).values())


def _host_peak_bytes(pid: int) -> int:
    """The highest resident size, less the pages of files that are resident now: libraries, which
    stay. Linux keeps no other peak.
    """
    counted = _fields(pid, "status", ("VmHWM", "RssFile"))
    return counted["VmHWM"] - counted["RssFile"]


def _fields(pid: int, name: str, wanted: tuple[str, ...]) -> dict[str, int]:
    """Fields of a file of /proc/PID, in bytes."""
    try:
        text = Path(f"/proc/{pid}/{name}").read_text("utf-8", "replace")
    except OSError as error:
        raise FootprintError(f"pid {pid}: {error.strerror}") from error
    found = {
        field: int(rest.split()[0]) * 1024
        for field, _, rest in (line.partition(":") for line in text.splitlines())
        if field in wanted
    }
    if len(found) != len(wanted):
        # A zombie has no mappings any more.
        raise FootprintError(f"pid {pid}: it has no memory map, it is exiting")
    return found


def _card_bytes(pid: int) -> int:
    if not has_driver():
        return 0
    # Only where there is a driver is this worth its import.
    from gateway.system.memory.footprint_nvidia import card_bytes

    return card_bytes(pid)
