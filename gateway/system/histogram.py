"""Counts of values by bucket."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate


class Histogram:
    """For one thread. prometheus_client's own takes a lock and walks its buckets one by one for
    each value: ten times as long, which is too much for every token.
    """

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds` ascend; each belongs to the bucket below it. Beyond the last there is one more.

        `sum` is that of all values.
        """
        self.sum = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[float, int]]:
        """Each bound, infinity the last, with how many values were at most that."""
        return list(zip((*self._bounds, math.inf), accumulate(self._counts), strict=True))
