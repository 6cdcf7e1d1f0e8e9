"""How long steps take on this machine, by the number of rows and of tokens a row, and how long a
pass of a drafter takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Final

from worker.guesses.row_rates import RowRates, shared_rows
from worker.mlx_lm.guessing import DRAFTED

# The numbers of tokens a row that a step may have.
WIDTHS: Final = (1, 2, 4, 8, 16)
# A figure is the median of so many steps. The first is left out: it may have compiled kernels.
_REMEMBERED_STEPS: Final = 5
_ENOUGH: Final = 3
# What a step costs for each token a row more, as a share of a step, if all goes well.
_HOPED_SHARE: Final = 0.05


class StepCosts:
    """Seconds of a step. Steps of nearly as many rows share a figure. In place of a width,
    `DRAFTED` stands for a pass of the drafter.
    """

    def __init__(self) -> None:
        self._steps: dict[tuple[int, int], deque[float]] = {}
        # The medians of these, since each step asks for many of them.
        self._seconds: dict[tuple[int, int], float] = {}
        self._compiled: set[tuple[int, int]] = set()
        # Of steps with one token a row.
        self.rates = RowRates()
        # If this is set, each step has so many tokens a row, to measure what that costs.
        self.rehearsed: int | None = None

    def observe(self, rows: int, width: int, seconds: float) -> None:
        """Note a step of so many rows and tokens a row."""
        if width not in (DRAFTED, *WIDTHS):
            return
        size = shared_rows(rows), width
        if size not in self._compiled:
            self._compiled.add(size)
            return
        self._record(size, seconds)
        if width != DRAFTED:
            self.rates.observe(rows, width, seconds)

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
                self.rates.know(rows, number)

    def is_measured(self, rows: int, width: int) -> bool:
        return len(self._steps.get((shared_rows(rows), width), ())) >= _ENOUGH

    def _known_ratio(self, rows: int, width: int) -> float | None:
        measured = (self._ratio(row_count, width) for row_count in _nearest(shared_rows(rows)))
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


def _nearest(rows: int) -> Iterator[int]:
    """Numbers of rows whose measurements stand for those of `rows`, the best one first. If many
    rows take long, only few rows were measured.
    """
    yield rows
    yield rows * 2
    while rows := rows >> 1:
        yield rows
