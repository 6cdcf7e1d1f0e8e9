"""The memory of processes and of the machine, under the same names on macOS and on Linux.

The footprint of a process is the memory that the system would get back if the process ended. The
resident size misleads in both directions: on macOS it leaves out Metal's memory, and everywhere it
counts file pages that other processes share.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Collection
from enum import StrEnum
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import psutil
from msgspec import Struct

import gateway
from gateway.system.memory_linux import has_driver
from gateway.system.memory_reading import CardMemory, HostError, Pressure

if sys.platform == "darwin":
    from gateway.system import memory_darwin as system_memory
    from gateway.system.memory_darwin import DarwinFootprintGauge as SystemGauge
else:
    from gateway.system import memory_linux as system_memory
    from gateway.system.memory_linux import LinuxFootprintGauge as SystemGauge

FootprintGauge = SystemGauge
footprint = system_memory.footprint
mapped_bytes = system_memory.mapped_bytes
wired_limit_mb = system_memory.wired_limit_mb

T = TypeVar("T")


class HostMemory(Struct, frozen=True):
    """The machine's memory. `wired_bytes` can't be paged out. None: the system doesn't tell."""

    total_bytes: int
    available_bytes: int
    wired_bytes: int | None
    pressure: Pressure | None


def host_memory() -> HostMemory:
    """Read the machine's memory; blocks for a fraction of a millisecond."""
    memory = psutil.virtual_memory()
    unlisted_bytes = _known(system_memory.unlisted_free_bytes) or 0
    return HostMemory(
        memory.total,
        memory.available + unlisted_bytes,
        _known(system_memory.wired_bytes),
        _known(system_memory.pressure),
    )


def _known(read: Callable[[], T]) -> T | None:
    """The figure that `read` returns; None if the system doesn't give this figure."""
    try:
        return read()
    except HostError:
        return None


def card_memory(pids: Collection[int]) -> CardMemory | None:
    """The memory of the NVIDIA cards that these processes use; None if they use no card.

    Raises:
        FootprintError: there is an NVIDIA driver, but it doesn't give the figures.
    """
    if not has_driver():
        return None
    # This module is slow to import, and useful only where there is a driver.
    from gateway.system import memory_nvidia

    return memory_nvidia.card_memory(pids)


_PROBE: Final = Path(gateway.__file__).resolve().parent.parent / "worker" / "__main__.py"
_PROBE_S: Final = 30.0


class DeviceMemory(Struct, frozen=True):
    """The most bytes that models may take of a device's memory. With `is_card` the device is a card
    with memory of its own, beside the machine's.
    """

    most_bytes: int
    is_card: bool = False


def device_memory(info: dict[str, Any]) -> DeviceMemory | None:
    """The memory of the device with this `device_info`. None: MLX computes in the machine's memory
    and gives no bound.

    Metal gives max_recommended_working_set_size, which depends on iogpu.wired_limit_mb. CUDA gives
    the card's total_memory. The CPU back end gives neither.
    """
    if recommended_bytes := _bytes(info, "max_recommended_working_set_size"):
        return DeviceMemory(recommended_bytes)
    if total_bytes := _bytes(info, "total_memory"):
        return DeviceMemory(total_bytes, is_card=True)
    return None


def device_info() -> dict[str, Any]:
    """mx.device_info() of a new process. Blocks until that has imported MLX, 0.1 to 0.3 s.

    Raises:
        OSError, ValueError, subprocess.SubprocessError: the process fails, or doesn't end in time.
    """
    done = subprocess.run(
        [sys.executable, "-P", str(_PROBE), "device"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_PROBE_S,
        check=True,
        close_fds=False,
    )
    return msgspec.json.decode(done.stdout, type=dict[str, Any])


def _bytes(info: dict[str, Any], key: str) -> int:
    """The size in `info` under this key; 0 if the key is missing or its value is no size."""
    size = info.get(key)
    return size if isinstance(size, int) and size > 0 else 0


# MLX's CUDA back end is a distribution of its own: mlx-cuda-12, mlx-cuda-13.
_CUDA: Final = "mlx-cuda"


class BackEnd(StrEnum):
    METAL = "metal"
    CUDA = "cuda"
    CPU = "cpu"


@functools.cache
def back_end() -> BackEnd:
    """MLX's back end in this Python environment. Models with an interpreter of their own are
    assumed to have the same back end. `BULKHEAD_DEVICE=cpu` has workers compute on the processor.
    """
    if os.environ.get("BULKHEAD_DEVICE") == "cpu":
        return BackEnd.CPU
    return BackEnd.METAL if sys.platform == "darwin" else _installed_back_end()


def _installed_back_end() -> BackEnd:
    names = (package.metadata["Name"] or "" for package in distributions())
    return BackEnd.CUDA if any(name.startswith(_CUDA) for name in names) else BackEnd.CPU
