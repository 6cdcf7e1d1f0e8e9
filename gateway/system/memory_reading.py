"""The figures that readings of memory give, on every system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

Pressure: TypeAlias = Literal["normal", "warn", "critical"]


class Footprint(Struct, frozen=True):
    """Bytes that a process has of the machine's memory, and of cards with memory of their own.
    `host_peak_bytes` is the highest `host_bytes` so far; None where the system keeps no peak.
    """

    host_bytes: int
    host_peak_bytes: int | None
    card_bytes: int = 0

    @property
    def current_bytes(self) -> int:
        """The bytes that count against the budget. A process that computes on a card has its model
        there, so only the card's memory counts. The watch on memory pressure guards the machine's
        memory. A sum of both would describe neither.
        """
        return self.card_bytes or self.host_bytes

    @property
    def peak_bytes(self) -> int | None:
        """The highest `current_bytes`; None for a card, as drivers keep no peak."""
        return None if self.card_bytes else self.host_peak_bytes


def together(footprints: Sequence[Footprint]) -> Footprint:
    """One footprint for several ranks. Their peaks are added, although they may be of different
    moments. On cards each rank has its own card, and the budget is that of one card, so the
    fullest card counts.
    """
    peaks = [footprint.host_peak_bytes for footprint in footprints]
    known = [peak for peak in peaks if peak is not None]
    return Footprint(
        host_bytes=sum(footprint.host_bytes for footprint in footprints),
        host_peak_bytes=sum(known) if len(known) == len(peaks) else None,
        card_bytes=max(footprint.card_bytes for footprint in footprints),
    )


class CardMemory(Struct, frozen=True):
    """Bytes of the cards that workers compute on, including the memory of other processes."""

    total_bytes: int
    available_bytes: int


class FootprintError(Exception):
    """A footprint can't be read. It must not count as 0: the memory may still be in use."""


class HostError(Exception):
    """A figure of the machine can't be read."""
