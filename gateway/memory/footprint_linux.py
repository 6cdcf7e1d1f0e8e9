"""The Linux twin of macOS's phys_footprint: anonymous and shared memory, what is swapped, and what
NVIDIA devices hold of the process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gateway.memory.reading import Footprint, FootprintError

# Clean file pages are left out, as in phys_footprint.
_COUNTED: Final = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")
# There while a driver is: NVIDIA's own, and that of WSL. It may be loaded at its first use.
_DRIVERS: Final = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


def footprint(pid: int) -> Footprint:
    """Read /proc/PID/smaps_rollup: milliseconds for gigabytes, so never on the event loop.

    Raises:
        FootprintError: no such process, no permission, a process that is exiting, or one whose
            memory on NVIDIA devices isn't known although there is a driver.
    """
    return Footprint(current_bytes=_host_bytes(pid) + _device_bytes(pid), peak_bytes=None)


def _host_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
    except OSError as error:
        raise FootprintError(f"pid {pid}: {error.strerror}") from error
    counted = {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (line.partition(" ") for line in text.splitlines())
        if name in _COUNTED
    }
    if len(counted) != len(_COUNTED):
        # A zombie has no mappings any more: the file is empty.
        raise FootprintError(f"pid {pid}: it has no memory map, it is exiting")
    return sum(counted.values())


def _device_bytes(pid: int) -> int:
    if not any(each.exists() for each in _DRIVERS):
        return 0
    # Only where there is a driver is this worth its import.
    from gateway.memory.footprint_nvidia import device_bytes

    return device_bytes(pid)
