"""Tokens a second by the number of rows of a batch, and how many rows pay."""

from __future__ import annotations

from collections import Counter, deque
from statistics import median
from typing import Final

# The rows of a batch before anything was measured, and the most rows that are tried.
_FIRST_ROWS: Final = 32
MOST_ROWS: Final = 256
# A rate is the median of so many steps, and of this many at least. Steps that are older than so
# many others don't count beside new ones: other work on the machine changes the speed.
_STEPS: Final = 16
_ENOUGH: Final = 3
_FRESH_STEPS: Final = 500
# Twice as many rows pay unless they make at most this share of the tokens a second. For seconds at
# a time the processor of a virtual machine made 0.6 of its other steps, whatever the rows. And with
# more rows more answers begin at once.
_LOSS: Final = 0.55


class RowRates:
    """The rates of steps with one token a row. Nearly as many rows share a rate."""

    def __init__(self) -> None:
        # How many steps had so many rows, also those with several tokens a row.
        self._ran: Counter[int] = Counter()
        self._rates: dict[int, deque[float]] = {}
        # The number of the last step of so many rows, and the number of all steps.
        self._last: dict[int, int] = {}
        self._steps = 0

    def observe(self, rows: int, width: int, seconds: float) -> None:
        """Note a step of so many rows and tokens a row."""
        size = shared_rows(rows)
        self._ran[size] += 1
        if width == 1:
            if not self._is_fresh(size):
                self._rates.pop(size, None)
            self._rates.setdefault(size, deque(maxlen=_STEPS)).append(rows / seconds)
            self._steps += 1
            self._last[size] = self._steps

    def know(self, rows: int, seconds: float) -> None:
        """Begin with the seconds of a step that another worker measured for this model."""
        for _ in range(_ENOUGH):
            self.observe(rows, 1, seconds)

    def most_rows(self) -> int:
        """The most rows that pay. The number is doubled until a doubling makes far fewer tokens a
        second. A doubling that was not measured is tried, and so is one that made fewer long ago.
        """
        rows = _FIRST_ROWS
        while rows < MOST_ROWS:
            gain = self._gain(2 * rows)
            if gain is None:
                before = self._gain(rows)
                pays = self._ran[rows] >= _ENOUGH and (before is None or before > _LOSS)
                return 2 * rows if pays else rows
            if gain <= _LOSS and self._is_fresh(2 * rows):
                return rows
            rows *= 2
        return rows

    def _gain(self, rows: int) -> float | None:
        """The tokens a second with so many rows, divided by those with half as many rows. None: one
        of the two was not measured.
        """
        if not (self._is_known(rows // 2) and self._is_known(rows)):
            return None
        return median(self._rates[rows]) / median(self._rates[rows // 2])

    def _is_known(self, rows: int) -> bool:
        return len(self._rates.get(rows, ())) >= _ENOUGH

    def _is_fresh(self, rows: int) -> bool:
        return self._steps - self._last.get(rows, -_FRESH_STEPS) < _FRESH_STEPS


def shared_rows(rows: int) -> int:
    """The number that stands for so many rows and nearly as many: the power of two at or above
    them.
    """
    return 1 << max(rows - 1, 0).bit_length()
