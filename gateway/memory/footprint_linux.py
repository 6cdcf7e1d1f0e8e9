"""The Linux twin of macOS's phys_footprint: anonymous and shared memory, and what is swapped.

Beside it, what NVIDIA cards hold of the process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gateway.memory.reading import Footprint, FootprintError

# Clean file pages are left out, as in phys_footprint.
_COUNTED: Final = ("Pss_Anon", "Pss_Shmem", "SwapPss")
# There while a driver is: NVIDIA's own, and that of WSL. It may be loaded at its first use.
_DRIVERS: Final = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


def footprint(pid: int) -> Footprint:
    """Read /proc/PID/smaps_rollup: milliseconds for gigabytes, so never on the event loop.

    Raises:
        FootprintError: no such process, no permission, a process that is exiting, or one whose
            memory on NVIDIA devices isn't known although there is a driver.
    """
    host_bytes = _host_bytes(pid)
    peak_bytes = max(host_bytes, _host_peak_bytes(pid))
    return Footprint(host_bytes, peak_bytes, card_bytes=_card_bytes(pid))


def has_driver() -> bool:
    """Whether processes may use NVIDIA cards here."""
    return any(each.exists() for each in _DRIVERS)


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
    from gateway.memory.footprint_nvidia import card_bytes

    return card_bytes(pid)
