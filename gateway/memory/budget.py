"""What all workers together may hold."""

from __future__ import annotations

import logging
import os
import subprocess
from typing import Final

import psutil

from gateway.config.settings import MemorySettings
from gateway.system.memory import BackEnd, DeviceMemory, back_end, device_info, device_memory
from gateway.system.memory_reading import Pressure
from gateway.system.notation import is_share, parse_size
from protocol.life import RankBackend

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


def default_backend() -> RankBackend:
    """Of ranks on this machine."""
    return "nccl" if back_end() is BackEnd.CUDA else "ring"


def sharing(ranks: int) -> int:
    """How many of a model's ranks on this machine take from one budget. A card's is that of one
    card, and every rank has a card of its own: the first card, which has rank 0, is the fullest.
    """
    return 1 if back_end() is BackEnd.CUDA else ranks


def cards(ranks: int) -> list[str]:
    """What CUDA_VISIBLE_DEVICES is for each rank: one of those that this process may use. Empty
    where MLX computes on no card of its own.
    """
    if back_end() is not BackEnd.CUDA:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(each) for each in range(ranks)]


_LASTS_S: Final = 5.0
_LEVELS: Final[tuple[Pressure, ...]] = ("warn", "critical")


class Shortage:
    """By readings that come a few times a second."""

    def __init__(self) -> None:
        self._since: dict[Pressure, float] = {}

    def lasting(self, pressure: Pressure | None, now: float) -> Pressure | None:
        """The highest level that the machine has been at, or above, for some seconds; None: it is
        not short.
        """
        reached = _LEVELS[: _LEVELS.index(pressure) + 1] if pressure in _LEVELS else ()
        self._since = {each: self._since.get(each, now) for each in reached}
        lasting = [each for each in reached if now - self._since[each] >= _LASTS_S]
        return lasting[-1] if lasting else None
