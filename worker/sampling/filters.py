"""top_p, top_k and min_p as one bound on the log probability of what may be chosen.

Each of them keeps the likeliest tokens, so together they keep what is above the highest of their
bounds, in whatever order they are applied. What is as likely as the last kept token is kept with
it: the choice among equals would be arbitrary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import mlx.core as mx
import numpy as np

from worker.sampling.blocks import in_blocks, width
from worker.sampling.settings import RowSampling

# On a CPU MLX sorts twenty times as slowly as NumPy. But while it is waited for within a step it
# has nothing to do, and with 32 rows it loses more by that than by sorting so little.
_SMALL_VOCABULARY: Final = 1024


class Filters:
    """The bounds of a batch's rows. `on_cpu`: for top_p MLX is waited for within a step, and NumPy
    sorts, unless the vocabulary is small. A GPU would have nothing to do meanwhile, and sorts fast.
    """

    def __init__(self, rows: Sequence[RowSampling], vocabulary: int, *, on_cpu: bool) -> None:
        self._count = len(rows)
        self._log_min_p: mx.array | None = None
        if any(each.min_p > 0.0 for each in rows):
            logs = [math.log(each.min_p) if each.min_p > 0.0 else -math.inf for each in rows]
            self._log_min_p = mx.array(logs)[:, None]
        ranked = [index for index, each in enumerate(rows) if each.top_p < 1.0 or each.top_k]
        self._all_ranked = len(ranked) == len(rows)
        self._ranked = mx.array(ranked, dtype=mx.uint32)
        self._any_ranked = bool(ranked)
        top_p = [rows[index].top_p for index in ranked]
        top_k = [rows[index].top_k for index in ranked]
        # A row's sums are to be the same whoever shares the batch: whole, and by the same means.
        self._sums = any(each < 1.0 for each in top_p)
        self._by_numpy = self._sums and on_cpu and vocabulary > _SMALL_VOCABULARY
        self._largest = vocabulary if self._sums else max(top_k, default=0)
        # No sum of probabilities is 2.
        self._top_p = mx.array([each if each < 1.0 else 2.0 for each in top_p])[:, None]
        self._beyond_top_k = mx.array(
            [self._largest - (each or self._largest) for each in top_k], dtype=mx.int32
        )[:, None]

    def least_kept(self, logprobs: mx.array, largest: mx.array) -> mx.array | None:
        """The least log probability that may be chosen, shape (rows, 1); None: all may be.

        `logprobs`: (rows, vocabulary), float32, of total probability 1. `largest`: (rows, 1), the
        largest of them.
        """
        least = None
        if self._log_min_p is not None:
            least = largest + self._log_min_p
        if self._any_ranked:
            ranked = logprobs if self._all_ranked else logprobs[self._ranked]
            bounds = self._least_of_ranked(ranked)
            if self._all_ranked:
                least = bounds if least is None else mx.maximum(least, bounds)
            else:
                least = mx.full((self._count, 1), -math.inf) if least is None else least
                least = least.at[self._ranked].maximum(bounds)
        return least

    def _least_of_ranked(self, logprobs: mx.array) -> mx.array:
        """The value at which top_p is reached, or that at which top_k is, if it is larger."""
        if self._by_numpy:
            return _least_by_numpy(logprobs, self._top_p, self._beyond_top_k)
        ascending = _largest(logprobs, self._largest)
        if not self._sums:
            return mx.take_along_axis(ascending, self._beyond_top_k, axis=-1)
        reached = mx.cumsum(mx.exp(ascending), axis=-1, reverse=True)
        beyond_top_p = (reached >= self._top_p).sum(axis=-1, keepdims=True) - 1
        beyond = mx.maximum(beyond_top_p, self._beyond_top_k)
        return mx.take_along_axis(ascending, beyond, axis=-1)


def _least_by_numpy(logprobs: mx.array, top_p: mx.array, beyond_top_k: mx.array) -> mx.array:
    """As `Filters._least_of_ranked`."""
    ascending = np.sort(np.array(logprobs), axis=-1)
    reached = np.cumsum(np.exp(ascending[:, ::-1]), axis=-1)[:, ::-1]
    beyond_top_p = (reached >= np.array(top_p)).sum(axis=-1, keepdims=True) - 1
    beyond = np.maximum(beyond_top_p, np.array(beyond_top_k))
    return mx.array(np.take_along_axis(ascending, beyond, axis=-1))


def _largest(values: mx.array, count: int) -> mx.array:
    """So many of each row's largest values, ascending."""
    rows, vocabulary = values.shape
    if count == vocabulary:
        return mx.sort(values, axis=-1)
    each = width(vocabulary)
    # They are in those blocks whose own largest values are the largest.
    if 2 * count * each <= vocabulary:
        blocks = in_blocks(values)
        heads = blocks.max(axis=-1)
        chosen = mx.argpartition(heads, -count, axis=-1)[:, -count:]
        values = mx.take_along_axis(blocks, chosen[:, :, None], axis=1).reshape(rows, -1)
    return mx.sort(mx.topk(values, count, axis=-1), axis=-1)
