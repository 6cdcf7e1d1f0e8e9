"""What the cards have that workers compute on."""

from __future__ import annotations

from collections.abc import Collection

from gateway.system.memory.footprint_linux import has_driver
from gateway.system.memory.reading import CardMemory


def card_memory(pids: Collection[int]) -> CardMemory | None:
    """Of the cards that these processes use; None if they use none, as on every Mac.

    Raises:
        FootprintError: there is a driver, and it doesn't say.
    """
    if not has_driver():
        return None
    # Only where there is a driver is this worth its import.
    from gateway.system.memory import footprint_nvidia

    return footprint_nvidia.card_memory(pids)
