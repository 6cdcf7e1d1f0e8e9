"""What all workers together may hold."""

from __future__ import annotations

from pathlib import Path

import psutil

from gateway.config.settings import MemorySettings
from gateway.config.sizes import parse_size
from gateway.memory.device import recommended_working_set_bytes


def budget_bytes(memory: MemorySettings, device_record: Path) -> int:
    """May take seconds: the recommended working set is asked of another process once a boot."""
    total_bytes = psutil.virtual_memory().total
    recommended_bytes = (
        recommended_working_set_bytes(device_record) if memory.budget == "auto" else None
    )
    return budget_of(memory, total_bytes, recommended_bytes)


def budget_of(memory: MemorySettings, total_bytes: int, recommended_bytes: int | None) -> int:
    """An explicit budget is meant literally; the headroom is taken from the automatic one."""
    if memory.budget != "auto":
        return parse_size(memory.budget, total_bytes)
    most_bytes = min(total_bytes, recommended_bytes or total_bytes)
    return max(0, most_bytes - parse_size(memory.headroom))
