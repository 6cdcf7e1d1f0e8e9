"""Some rows of a batch."""

from __future__ import annotations

from collections.abc import Iterable

import mlx.core as mx


class RowSubset:
    """Nothing is copied where they are all."""

    def __init__(self, chosen: Iterable[bool]) -> None:
        """`chosen` has one for each row of the batch."""
        flags = list(chosen)
        self.places = [row for row, flag in enumerate(flags) if flag]
        self._all = len(self.places) == len(flags)
        self._indices = mx.array(self.places, dtype=mx.uint32)

    def of(self, values: mx.array) -> mx.array:
        return values if self._all else values[self._indices]

    def put(self, values: mx.array, rows: mx.array) -> mx.array:
        """`values` with these in place of its own."""
        if self._all:
            return rows
        changed = mx.array(values)
        changed[self._indices] = rows
        return changed
