"""top_p, top_k and min_p as one bound on the log probability of what may be chosen.

Each of them keeps the likeliest tokens, so together they keep what is above the highest of their
bounds, in whatever order they are applied. What is as likely as the last kept token is kept with
it: the choice among equals would be arbitrary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, cast

import mlx.core as mx

from worker.sampling.blocks import in_blocks, width
from worker.sampling.settings import RowSampling

# On a CPU a whole row is sorted only where top_p needs more tokens than so many, or than this part
# of the vocabulary.
_CANDIDATES: Final = 64
_CANDIDATE_PART: Final = 512


class Filters:
    """The bounds of a batch's rows. `on_cpu`: MLX is waited for within a step, to sort no more than
    must be. A GPU would have nothing to do meanwhile, and sorts fast.
    """

    def __init__(self, rows: Sequence[RowSampling], vocabulary: int, *, on_cpu: bool) -> None:
        self._count = len(rows)
        self._vocabulary = vocabulary
        self._log_min_p: mx.array | None = None
        if any(each.min_p > 0.0 for each in rows):
            logs = [math.log(each.min_p) if each.min_p > 0.0 else -math.inf for each in rows]
            self._log_min_p = mx.array(logs)[:, None]
        ranked = [index for index, each in enumerate(rows) if each.top_p < 1.0 or each.top_k]
        self._all_ranked = len(ranked) == len(rows)
        self._ranked = mx.array(ranked, dtype=mx.uint32)
        self._any_ranked = bool(ranked)
        # Those whose bound may lie anywhere.
        self._unbounded = [
            (place, rows[index].top_p)
            for place, index in enumerate(ranked)
            if not rows[index].top_k
        ]
        self._largest = max((rows[index].top_k for index in ranked), default=0)
        if self._unbounded:
            candidates = max(_CANDIDATES, vocabulary // _CANDIDATE_PART)
            self._largest = max(self._largest, candidates) if on_cpu else vocabulary
        self._largest = min(self._largest, vocabulary)
        self._may_lack = bool(self._unbounded) and self._largest < vocabulary
        top_p = [rows[index].top_p for index in ranked]
        # No sum of probabilities is 2.
        self._top_p = mx.array([each if each < 1.0 else 2.0 for each in top_p])[:, None]
        self._beyond_top_k = mx.array(
            [self._largest - (rows[index].top_k or self._largest) for index in ranked],
            dtype=mx.int32,
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
        ascending = _largest(logprobs, self._largest)
        reached = _reached(ascending)
        least = _least(ascending, reached, self._top_p, self._beyond_top_k)
        if self._may_lack:
            known = cast("list[float]", reached[:, 0].tolist())
            lacking = [place for place, top_p in self._unbounded if known[place] < top_p]
            if lacking:
                rows = mx.array(lacking, dtype=mx.uint32)
                ascending = mx.sort(logprobs[rows], axis=-1)
                least[rows] = _least(ascending, _reached(ascending), self._top_p[rows], mx.array(0))
        return least


def _reached(ascending: mx.array) -> mx.array:
    """How much probability each value and the larger ones have."""
    return mx.cumsum(mx.exp(ascending), axis=-1, reverse=True)


def _least(
    ascending: mx.array, reached: mx.array, top_p: mx.array, beyond_top_k: mx.array
) -> mx.array:
    """The value at which top_p is reached, or that at which top_k is, if it is larger."""
    beyond_top_p = (reached >= top_p).sum(axis=-1, keepdims=True) - 1
    return mx.take_along_axis(ascending, mx.maximum(beyond_top_p, beyond_top_k), axis=-1)


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
