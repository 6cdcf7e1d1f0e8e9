"""Caches whose keys and values are quantized, for one row or for the rows of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, Final, TypeAlias

import mlx.core as mx
from mlx_lm.models.cache import CacheList, KVCache, make_prompt_cache

from worker.mlx_lm.row_shifts import RowShifts

# So many numbers share one scale and one bias, by mlx-lm's own default.
_GROUP_SIZE: Final = 64

# The packed numbers of an array, their scales and their biases: each (rows, heads, tokens, width).
Quantized: TypeAlias = tuple[mx.array, mx.array, mx.array]


class QuantizedCache(CacheList):  # type: ignore[misc]  # mlx-lm is untyped
    """The keys and values of one layer, with numbers of `bits` bits.

    mlx-lm's QuantizedKVCache has no form for batches. Here the packed numbers, the scales and the
    biases are in a plain cache each. `caches` are these three, of one row or of a batch.
    """

    group_size = _GROUP_SIZE

    def __init__(self, bits: int) -> None:
        super().__init__(KVCache(), KVCache(), KVCache())
        # mlx-lm's attention knows by this name that keys and values are quantized.
        self.bits = bits

    @property
    def offset(self) -> int | mx.array:
        """The position of the next token: one number, or (rows,)."""
        offset: int | mx.array = self.caches[0].offset
        return offset

    def make_mask(self, *arguments: Any, **options: Any) -> Any:
        return self.caches[0].make_mask(*arguments, **options)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Quantized, Quantized]:
        """Add the tokens of a step. Returns the keys and the values of all tokens."""
        new = [mx.quantize(each, self.group_size, self.bits) for each in (keys, values)]
        for cache, *arrays in zip(self.caches, *new, strict=True):
            cache.update_and_fetch(*arrays)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Quantized, Quantized]:
        keys, values = zip(*(each.keys_and_values() for each in self.caches), strict=True)
        return keys, values

    def extract(self, row: int) -> QuantizedCache:
        return self.of(each.extract(row) for each in self.caches)

    @classmethod
    def merge(cls, caches: Sequence[QuantizedCache]) -> QuantizedCache:
        return caches[0].of(CacheList.merge(caches).caches)

    def of(self, caches: Iterable[Any]) -> QuantizedCache:
        """The same kind of cache with other packed numbers, scales and biases."""
        made = copy(self)
        made.caches = tuple(caches)
        return made


class QuantizingModel:
    """A model whose new caches are quantized, with numbers of `bits` bits."""

    def __init__(self, model: Any, bits: int) -> None:
        self._model = model
        self._bits = bits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._model(*arguments, **options)

    def make_cache(self) -> list[Any]:
        """New caches for one row, in the order of the layers."""
        return [_quantized(each, self._bits) for each in make_prompt_cache(self._model)]


def _quantized(cache: Any, bits: int) -> Any:
    if isinstance(cache, CacheList):
        return CacheList(*(_quantized(each, bits) for each in cache.caches))
    return cache if isinstance(cache, RowShifts) else QuantizedCache(bits)
