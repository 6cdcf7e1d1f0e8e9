"""How long steps take on this machine, by the number of rows and of tokens a row, and how long a
pass of a drafter takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Final

from worker.mlx_lm.guessing import DRAFTED

# The numbers of tokens a row that a step may have.
WIDTHS: Final = (1, 2, 4, 8, 16)
# A figure is the median of so many steps. The first is left out: it may have compiled kernels.
_REMEMBERED_STEPS: Final = 5
_ENOUGH: Final = 3
# What a step costs for each token a row more, as a share of a step, if all goes well.
_HOPED_SHARE: Final = 0.05
# The rate of a number of rows is the median of so many steps. Rates that are older than so many
# steps don't count beside new ones: other work on the machine changes the speed.
_RATED_STEPS: Final = 16
_FRESH_STEPS: Final = 500


class StepCosts:
    """Seconds of a step. Steps of nearly as many rows share a figure. In place of a width,
    `DRAFTED` stands for a pass of the drafter.
    """

    def __init__(self) -> None:
        self._steps: dict[tuple[int, int], deque[float]] = {}
        # The medians of these, since each step asks for many of them.
        self._seconds: dict[tuple[int, int], float] = {}
        self._compiled: set[tuple[int, int]] = set()
        # Tokens a second of steps with one token a row, the number of the last of these steps, and
        # the number of all of them.
        self._rates: dict[int, deque[float]] = {}
        self._rated_at: dict[int, int] = {}
        self._rated_steps = 0
        # If this is set, each step has so many tokens a row, to measure what that costs.
        self.rehearsed: int | None = None

    def observe(self, rows: int, width: int, seconds: float) -> None:
        """Note a step of so many rows and tokens a row."""
        if width not in (DRAFTED, *WIDTHS):
            return
        size = _rows(rows), width
        if size not in self._compiled:
            self._compiled.add(size)
            return
        self._record(size, seconds)
        if width == 1:
            self._rate(rows, seconds)

    def ratio(self, rows: int, width: int) -> float:
        """The seconds of a step, divided by the seconds of a step with one token a row. Before the
        first measurement the ratio is assumed: `width` for a step, and 1 for a pass of the drafter.
        """
        if width == 1:
            return 1.0
        known = self._known_ratio(rows, width)
        return float(max(width, 1)) if known is None else known

    def is_known(self, rows: int, width: int) -> bool:
        """Whether such a step was measured, or one of another number of rows that stands for it."""
        return self._known_ratio(rows, width) is not None

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of steps, by rows and tokens a row, as in "4x16", and of passes: "4x0"."""
        return {f"{rows}x{width}": number for (rows, width), number in self._seconds.items()}

    def know(self, seconds: Mapping[str, float]) -> None:
        """Begin with the seconds that another worker measured for this model."""
        for name, number in seconds.items():
            rows, width = map(int, name.split("x"))
            self._record((rows, width), *[number] * _ENOUGH)
            if width == 1:
                self._rate(rows, *[number] * _ENOUGH)

    def is_measured(self, rows: int, width: int) -> bool:
        return len(self._steps.get((_rows(rows), width), ())) >= _ENOUGH

    def gain(self, rows: int) -> float | None:
        """The tokens a second with so many rows, divided by those with half as many rows. None: one
        of the two was not measured.
        """
        half, all_ = (self._rates.get(_rows(count), ()) for count in (rows // 2, rows))
        if min(len(half), len(all_)) < _ENOUGH:
            return None
        return median(all_) / median(half)

    def is_fresh(self, rows: int) -> bool:
        """Whether the rate of so many rows was measured lately."""
        return self._rated_steps - self._rated_at.get(_rows(rows), -_FRESH_STEPS) < _FRESH_STEPS

    def _rate(self, rows: int, *seconds: float) -> None:
        """Note the rate of steps with one token a row."""
        size = _rows(rows)
        rates = self._rates.setdefault(size, deque(maxlen=_RATED_STEPS))
        if not self.is_fresh(rows):
            rates.clear()
        rates.extend(rows / number for number in seconds)
        self._rated_steps += len(seconds)
        self._rated_at[size] = self._rated_steps

    def _known_ratio(self, rows: int, width: int) -> float | None:
        measured = (self._ratio(row_count, width) for row_count in _nearest(_rows(rows)))
        return next((ratio for ratio in measured if ratio is not None), None)

    def _ratio(self, rows: int, width: int) -> float | None:
        alone, wide = (self._seconds.get((rows, step_width)) for step_width in (1, width))
        return None if alone is None or wide is None else wide / alone

    def _record(self, size: tuple[int, int], *seconds: float) -> None:
        steps = self._steps.setdefault(size, deque(maxlen=_REMEMBERED_STEPS))
        steps.extend(seconds)
        self._seconds[size] = median(steps)


def hoped_ratio(width: int) -> float:
    """The ratio of `StepCosts.ratio` that a step has at best."""
    return 1.0 + _HOPED_SHARE * (width - 1)


def _rows(rows: int) -> int:
    """The power of two at or above a number of rows."""
    return 1 << max(rows - 1, 0).bit_length()


def _nearest(rows: int) -> Iterator[int]:
    """Numbers of rows whose measurements stand for those of `rows`, the best one first. If many
    rows take long, only few rows were measured.
    """
    yield rows
    yield rows * 2
    while rows := rows >> 1:
        yield rows


# The rows of a batch before anything was measured, and the most rows that are tried.
_FIRST_ROWS: Final = 32
MOST_ROWS: Final = 256
# Twice as many rows must make this many times the tokens a second.
_WORTH: Final = 1.0


def most_rows(costs: StepCosts) -> int:
    """The most rows that are worth a place in the batch. The number is doubled as long as this
    makes no fewer tokens a second, since more answers begin at once. A doubling that was not
    measured is tried, and so is a doubling that made fewer tokens long ago.
    """
    rows = _FIRST_ROWS
    while rows < MOST_ROWS:
        gain = costs.gain(2 * rows)
        if gain is None:
            before = costs.gain(rows)
            return rows if before is None or before < _WORTH else 2 * rows
        if gain < _WORTH and costs.is_fresh(2 * rows):
            return rows
        rows *= 2
    return rows
