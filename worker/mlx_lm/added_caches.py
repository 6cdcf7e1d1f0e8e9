"""Caches that mlx-lm lacks: of quantized keys and values for a batch, and of shifted positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, Final, TypeAlias

import mlx.core as mx
from mlx_lm.models.cache import CacheList, KVCache, make_prompt_cache

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
        new = [mx.quantize(array, self.group_size, self.bits) for array in (keys, values)]
        for cache, *arrays in zip(self.caches, *new, strict=True):
            cache.update_and_fetch(*arrays)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Quantized, Quantized]:
        keys, values = zip(*(cache.keys_and_values() for cache in self.caches), strict=True)
        return keys, values

    def extract(self, row: int) -> QuantizedCache:
        return self.of(cache.extract(row) for cache in self.caches)

    @classmethod
    def merge(cls, caches: Sequence[QuantizedCache]) -> QuantizedCache:
        return caches[0].of(CacheList.merge(caches).caches)

    def of(self, caches: Iterable[Any]) -> QuantizedCache:
        """The same kind of cache with other packed numbers, scales and biases."""
        quantized = copy(self)
        quantized.caches = tuple(caches)
        return quantized


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
        return [_quantized(layer, self._bits) for layer in make_prompt_cache(self._model)]


def _quantized(cache: Any, bits: int) -> Any:
    if isinstance(cache, CacheList):
        return CacheList(*(_quantized(part, bits) for part in cache.caches))
    return cache if isinstance(cache, RowShifts) else QuantizedCache(bits)


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
        return cls([shift for row_shifts in each for shift in row_shifts.shifts])


def shift_row(caches: Sequence[object], shift: int) -> None:
    """Shift the positions of the one row that these caches belong to."""
    for cache in caches:
        if isinstance(cache, RowShifts):
            cache.set([shift])
