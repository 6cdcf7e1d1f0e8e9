"""What all workers together may hold."""

from __future__ import annotations

from pathlib import Path

import psutil

from gateway.config.settings import MemorySettings
from gateway.config.sizes import parse_size
from gateway.memory.device import recommended_working_set_bytes


def budget_bytes(memory: MemorySettings, device_record: Path) -> int:
    """An explicit budget is meant literally; the headroom is taken from the automatic one.

    May take seconds: the recommended working set is asked of another process once a boot.
    """
    total_bytes = psutil.virtual_memory().total
    if memory.budget != "auto":
        return parse_size(memory.budget, total_bytes)
    recommended_bytes = recommended_working_set_bytes(device_record) or total_bytes
    return max(0, min(total_bytes, recommended_bytes) - parse_size(memory.headroom))
