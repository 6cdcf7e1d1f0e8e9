"""What two caches of one prompt are compared by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList

from worker.mlx_lm.added_caches import QuantizedCache
from worker.mlx_lm.caches import grows


def values_of(caches: Sequence[Any], begin: int, end: int) -> list[mx.array]:
    """The keys and values of the tokens `begin` to `end` - 1 in the caches of one row, and its
    recurrent states. Quantized ones are made whole.

    The slots of a sliding window are left out, since their order depends on the chunks in which the
    prompt was computed.
    """
    values: list[mx.array] = []
    for cache in caches:
        if isinstance(cache, QuantizedCache):
            for name in ("keys", "values"):
                parts = [getattr(part, name)[..., begin:end, :] for part in cache.caches]
                packed, scales, biases = parts
                bits = cache.bits
                values.append(mx.dequantize(packed, scales, biases, cache.group_size, bits))
        elif isinstance(cache, CacheList):
            values += values_of(cache.caches, begin, end)
        elif isinstance(cache, ArraysCache):
            values += [array for array in cache.cache if array is not None]
        elif grows(cache) and not cache.empty():
            values += [array[..., begin:end, :] for array in (cache.keys, cache.values)]
    return values


def distances(found: Sequence[mx.array], computed: Sequence[mx.array]) -> list[float]:
    """The distance of each pair of arrays, relative to the second one. Arrays without a number,
    as the values of some architectures, have none.
    """
    pairs = zip(found, computed, strict=True)
    results = [_distance(one, other) for one, other in pairs if other.size]
    return mx.stack(results).tolist() if results else []  # type: ignore[return-value]


def _distance(one: mx.array, other: mx.array) -> mx.array:
    one, other = one.astype(mx.float32), other.astype(mx.float32)
    difference = mx.square(one - other).sum()
    return mx.sqrt(difference / mx.maximum(mx.square(other).sum(), 1e-12))


def divergence(one: mx.array, other: mx.array) -> float:
    """The Jensen-Shannon divergence, in nats, of the distributions that two rows of logits give."""
    first, second = (mx.softmax(logits.astype(mx.float32), axis=-1) for logits in (one, other))
    middle = (first + second) / 2
    return ((_excess(first, middle) + _excess(second, middle)) / 2).item()  # type: ignore[return-value]


def _excess(distribution: mx.array, middle: mx.array) -> mx.array:
    ratio = mx.log(mx.maximum(distribution, 1e-30)) - mx.log(mx.maximum(middle, 1e-30))
    return (distribution * ratio).sum()
