"""What readings of memory give, on every system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

Pressure: TypeAlias = Literal["normal", "warn", "critical"]


class Footprint(Struct, frozen=True):
    """What a process holds of the machine's memory, and of cards with memory of their own, in
    bytes. The peak is the highest so far; None where the system doesn't keep it.
    """

    host_bytes: int
    host_peak_bytes: int | None
    card_bytes: int = 0

    @property
    def current_bytes(self) -> int:
        """What the budget counts. A process that computes on a card has its model there, so the
        card's memory is the scarce one, and its own in the machine is left to the watch on
        pressure. A sum of the two would be a figure of neither.
        """
        return self.card_bytes or self.host_bytes

    @property
    def peak_bytes(self) -> int | None:
        """The highest of that. Drivers keep none for a card."""
        return None if self.card_bytes else self.host_peak_bytes


def together(footprints: Sequence[Footprint]) -> Footprint:
    """Of several ranks; their peaks may be of different moments. Each has a card of its own, if
    any, and the budget is of one: the fullest counts.
    """
    peaks = [each.host_peak_bytes for each in footprints]
    known = [each for each in peaks if each is not None]
    return Footprint(
        host_bytes=sum(each.host_bytes for each in footprints),
        host_peak_bytes=sum(known) if len(known) == len(peaks) else None,
        card_bytes=max(each.card_bytes for each in footprints),
    )


class CardMemory(Struct, frozen=True):
    """Bytes of the cards that workers compute on, whoever holds them."""

    total_bytes: int
    available_bytes: int


class FootprintError(Exception):
    """The footprint can't be read. Never taken for 0: that would be memory which came back."""


class HostError(Exception):
    """A figure of the machine can't be read."""
