"""The Linux twin of macOS's phys_footprint: anonymous and shared memory, and what is swapped."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gateway.memory.reading import Footprint, FootprintError

# Clean file pages are left out, as in phys_footprint.
_COUNTED: Final = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")


def footprint(pid: int) -> Footprint:
    """Read /proc/PID/smaps_rollup: milliseconds for gigabytes, so never on the event loop.

    Raises:
        FootprintError: no such process, no permission, or a process that is exiting.
    """
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
    return Footprint(current_bytes=sum(counted.values()), peak_bytes=None)
