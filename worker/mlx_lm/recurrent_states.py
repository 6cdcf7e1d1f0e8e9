"""The recurrent states to which rows go back after a wrong guess."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from worker.mlx_lm.caches import leaves_of


class RecurrentStates:
    """The recurrent state of each layer before a step."""

    def __init__(self, caches: list[ArraysCache]) -> None:
        self._caches = caches
        self._arrays = [list(cache.cache) for cache in caches]

    @classmethod
    def before(cls, caches: list[Any], lengths: list[int]) -> RecurrentStates | None:
        """The states before a step in which each row has so many tokens; None: there are none."""
        recurrent = [leaf for leaf in leaves_of(caches) if isinstance(leaf, ArraysCache)]
        if not recurrent:
            return None
        if min(lengths) < max(lengths):
            for cache in recurrent:
                cache.prepare(lengths=lengths)
        return cls(recurrent)

    def finalize(self) -> None:
        """End a step in which rows have different numbers of tokens."""
        for cache in self._caches:
            cache.finalize()

    def restore(self, rows: list[bool]) -> None:
        """Give the chosen rows their state from before the step."""
        chosen = mx.array(rows)
        for cache, arrays in zip(self._caches, self._arrays, strict=True):
            cache.cache = [
                mx.where(chosen.reshape(-1, *[1] * (now.ndim - 1)), before, now)
                for before, now in zip(arrays, cache.cache, strict=True)
            ]
