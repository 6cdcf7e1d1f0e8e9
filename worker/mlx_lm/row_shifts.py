"""The shifts of the positions of a batch's rows."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx


class RowShifts:
    """How far the positions of each row are shifted, since a picture may take fewer positions than
    it has tokens.

    The shifts stand in the list of a model's caches, so that batches carry them along while rows
    join and leave. They have no tokens, and count as an empty cache.
    """

    nbytes = 0
    state = ()

    def __init__(self, shifts: Sequence[int] = (0,)) -> None:
        self.set(shifts)

    def set(self, shifts: Sequence[int]) -> None:
        self.shifts = list(shifts)
        self._array: mx.array | None = None

    @property
    def array(self) -> mx.array:
        """The shifts, shape (rows, 1)."""
        if self._array is None:
            self._array = mx.array(self.shifts)[:, None]
        return self._array

    def empty(self) -> bool:
        return True

    def size(self) -> int:
        return 0

    def prepare(self, **_: object) -> None:
        """Padding shifts nothing."""

    def finalize(self) -> None:
        """Padding has shifted nothing."""

    def filter(self, rows: Sequence[int]) -> None:
        self.set([self.shifts[row] for row in rows])

    def extend(self, other: RowShifts) -> None:
        self.set(self.shifts + other.shifts)

    def extract(self, row: int) -> RowShifts:
        return RowShifts(self.shifts[row : row + 1])

    @classmethod
    def merge(cls, each: Sequence[RowShifts]) -> RowShifts:
        return cls([shift for one in each for shift in one.shifts])


def shift_row(caches: Sequence[object], shift: int) -> None:
    """Shift the positions of the one row that these caches belong to."""
    for each in caches:
        if isinstance(each, RowShifts):
            each.set([shift])
