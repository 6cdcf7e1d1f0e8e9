"""The memory that MLX may use on this machine, asked of a process that imports it."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

import gateway
from gateway.boot import present_boot
from gateway.state_file import read_state, write_state

logger = logging.getLogger(__name__)

_PROBE: Final = Path(gateway.__file__).resolve().parent.parent / "worker" / "device.py"
_PROBE_S: Final = 30.0


class DeviceRecord(Struct, frozen=True):
    """What was read since a boot; the limit can be set anew with each (iogpu.wired_limit_mb)."""

    boot: str
    python: str
    recommended_working_set_bytes: int | None


def recommended_working_set_bytes(record: Path) -> int | None:
    """max_recommended_working_set_size, read once a boot and kept in a file; None where MLX names
    none. Blocks for the time of an import of MLX.
    """
    known = read_state(record, DeviceRecord)
    if known is not None and (known.boot, known.python) == (present_boot(), sys.executable):
        return known.recommended_working_set_bytes
    try:
        found = device_info()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        logger.warning("The recommended working set can't be read: %s", error)
        return None
    size_bytes = recommended_bytes(found)
    write_state(record, DeviceRecord(present_boot(), sys.executable, size_bytes))
    return size_bytes


def recommended_bytes(info: dict[str, Any]) -> int | None:
    """max_recommended_working_set_size of `device_info`; None where MLX names none."""
    size = info.get("max_recommended_working_set_size")
    return size if isinstance(size, int) and size > 0 else None


def device_info() -> dict[str, Any]:
    """mx.device_info(). Blocks for the time of an import of MLX.

    Raises:
        OSError, ValueError, subprocess.SubprocessError: MLX can't be asked.
    """
    done = subprocess.run(
        [sys.executable, "-P", str(_PROBE)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_PROBE_S,
        check=True,
        close_fds=False,
    )
    return msgspec.json.decode(done.stdout, type=dict[str, Any])
