"""The memory that MLX may use on this machine, asked of a process that imports it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

import gateway

_PROBE: Final = Path(gateway.__file__).resolve().parent.parent / "worker" / "device.py"
_PROBE_S: Final = 30.0


class DeviceMemory(Struct, frozen=True):
    """What models may take of a device's memory. `is_card`: it is a card's own memory, beside the
    machine's.
    """

    most_bytes: int
    is_card: bool = False


def device_memory(info: dict[str, Any]) -> DeviceMemory | None:
    """By `device_info`. None where MLX computes in the machine's memory and names no bound.

    Metal names max_recommended_working_set_size, which follows iogpu.wired_limit_mb. CUDA names the
    card's total_memory, and the CPU back end names nothing.
    """
    if recommended_bytes := _bytes(info, "max_recommended_working_set_size"):
        return DeviceMemory(recommended_bytes)
    if total_bytes := _bytes(info, "total_memory"):
        return DeviceMemory(total_bytes, is_card=True)
    return None


def device_info() -> dict[str, Any]:
    """mx.device_info(). Blocks for the time of an import of MLX, 0.1 to 0.3 s.

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


def _bytes(info: dict[str, Any], key: str) -> int:
    """0 where it is missing, or no size."""
    size = info.get(key)
    return size if isinstance(size, int) and size > 0 else 0
