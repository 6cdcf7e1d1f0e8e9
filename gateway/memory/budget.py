"""What all workers together may hold."""

from __future__ import annotations

import logging
import subprocess
from typing import Final

import psutil

from gateway.config.settings import MemorySettings
from gateway.system.memory import DeviceMemory, device_info, device_memory
from gateway.system.notation import is_share, parse_size

logger = logging.getLogger(__name__)

# The least part of its memory that macOS recommends to MLX: 10.7 GiB of 16 (ollama#17367 has more).
_LEAST_SHARE: Final = 2 / 3


def budget_bytes(memory: MemorySettings) -> int:
    """For "auto" and shares the device is asked, in a process of its own: iogpu.wired_limit_mb may
    have been set since the last start.
    """
    total_bytes = psutil.virtual_memory().total
    device = None
    if memory.budget == "auto" or is_share(memory.budget):
        try:
            device = device_memory(device_info())
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            logger.warning("The device's memory can't be read: %s", error)
            device = unknown_device(total_bytes)
    return budget_of(memory, total_bytes, device)


def unknown_device(total_bytes: int) -> DeviceMemory:
    """What is counted on where MLX can't be asked. `total_bytes` is the machine's memory."""
    return DeviceMemory(int(total_bytes * _LEAST_SHARE))


def budget_of(memory: MemorySettings, total_bytes: int, device: DeviceMemory | None) -> int:
    """An explicit budget is meant literally; the headroom is taken from the automatic one. A share
    is one of the memory that models are in: the card's, where MLX computes on one.

    `total_bytes` is the machine's memory.
    """
    if device is not None and device.is_card:
        total_bytes = device.most_bytes
    if memory.budget != "auto":
        return parse_size(memory.budget, total_bytes)
    most_bytes = total_bytes if device is None else min(total_bytes, device.most_bytes)
    return max(0, most_bytes - parse_size(memory.headroom))
