"""The turns of the sharers of a worker, and the seconds that each of them used. No I/O, and light
to import.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# Sharers that are remembered. Those that are furthest behind are forgotten first: they owe the
# least.
_MOST: Final = 256


class Turns:
    """Start-time fair queueing (Goyal, Vin and Cheng, 1996). Each piece of work gets a number when
    it comes, and pieces start in the order of their numbers. The distance between two numbers of a
    sharer is the cost of the piece divided by the share. A sharer that is new, or comes back, gets
    the number of the piece that started last. The pieces of one sharer stay in their order.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._ends: dict[str, float] = {}

    def reserve(self, sharer: str, share: int, cost: float) -> float:
        """The number of a new piece of work."""
        number = max(self._now, self._ends.get(sharer, 0.0))
        self._ends[sharer] = number + cost / share
        if len(self._ends) > _MOST:
            del self._ends[min(self._ends, key=lambda name: self._ends[name])]
        return number

    def start(self, number: float) -> None:
        """The piece with this number starts now."""
        self._now = max(self._now, number)


class SharerSeconds:
    """The seconds of steps, by the sharers whose requests took part."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def add(self, sharers: Iterable[str], seconds: float) -> None:
        """Add a step, which costs each of its requests the same. `sharers` has a name for each."""
        names = list(sharers)
        for name in names:
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds / len(names)

    def collect(self) -> dict[str, float]:
        """The seconds since the last call."""
        seconds, self._seconds = self._seconds, {}
        return seconds
