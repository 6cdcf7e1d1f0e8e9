"""Where mlx-lm's generator copies the caches of a row that ends, array by array, they are lent."""

from __future__ import annotations

from copy import copy
from typing import Any, NamedTuple

from worker.engines.unscored import UnscoredBatch, UnscoredGenerator
from worker.prompt_cache.blocks import leaves_of


class RowCaches(NamedTuple):
    """Caches, and which of their rows it is."""

    caches: list[Any]
    place: int


class _LendingBatch(UnscoredBatch):
    # In this step.
    _lent: list[Any] | None = None

    def next(self) -> Any:
        try:
            return super().next()
        finally:
            self._lent = None

    def extract_cache(self, idx: int) -> RowCaches:
        if self._lent is None:
            # Without rows that end a batch goes on with other arrays; these stay as they are.
            self._lent = [copy(leaf) for leaf in leaves_of(self.prompt_cache)]
        return RowCaches(self._lent, idx)


class LendingGenerator(UnscoredGenerator):
    """With a row's last token it gives out what its whole batch had, as `RowCaches`; rows that end
    together have the same. To be used before the next step, which would need that memory twice.

    What is cut into blocks is copied then. Copied before, too, it held up the other rows for longer
    than a step on a GPU, where some ended together.
    """

    batch_type = _LendingBatch
