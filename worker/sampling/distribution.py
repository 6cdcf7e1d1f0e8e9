"""From the log probabilities of each row to its token: filters, XTC, the temperature, and the draw.

top_p, top_k and min_p each allow the likeliest tokens, down to a bound. Together they allow the
tokens down to the highest of the three bounds, in any order of the filters. So one bound a row is
enough. A token that is exactly as likely as the bound is allowed, since a choice among equally
likely tokens would be arbitrary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Final

import mlx.core as mx
import numpy as np

from worker.sampling.settings import RowSampling, chance

# The most and the fewest entries of a block.
_MOST: Final = 128
_LEAST: Final = 16
# On a CPU MLX sorts twenty times as slowly as NumPy. But MLX is idle while NumPy sorts: with 32
# rows of a vocabulary up to this size, the idle time costs more than MLX's slower sort.
_SMALL_VOCABULARY: Final = 1024
# The exponentials of lower numbers are subnormal in float32, and slow to compute. Added to the mass
# of the likeliest token, which is 1, such an exponential changes no sum.
_LEAST_EXPONENT: Final = -87.0
_SQUARINGS: Final = 7
# The most terms of a sum in float32: in longer sums, rounding would lose some unlikely tokens.
_LONGEST_SUM: Final = 4096


class Filters:
    """top_p, top_k and min_p of a batch's rows. With `on_cpu` NumPy sorts for top_p, unless the
    vocabulary is small; for that the step waits for MLX. A GPU sorts fast, and would be idle during
    such a wait.
    """

    def __init__(self, rows: Sequence[RowSampling], vocabulary: int, *, on_cpu: bool) -> None:
        self._count = len(rows)
        self._log_min_p: mx.array | None = None
        if any(row.min_p > 0.0 for row in rows):
            logs = [
                math.log(sampling.min_p) if sampling.min_p > 0.0 else -math.inf for sampling in rows
            ]
            self._log_min_p = mx.array(logs)[:, None]
        ranked = [
            index
            for index, row_sampling in enumerate(rows)
            if row_sampling.top_p < 1.0 or row_sampling.top_k
        ]
        self._all_ranked = len(ranked) == len(rows)
        self._ranked = mx.array(ranked, dtype=mx.uint32)
        self._any_ranked = bool(ranked)
        top_p = [rows[index].top_p for index in ranked]
        top_k = [rows[index].top_k for index in ranked]
        # All sums are over the whole vocabulary, so that a row's don't depend on other rows.
        self._sums = any(probability < 1.0 for probability in top_p)
        self._by_numpy = self._sums and on_cpu and vocabulary > _SMALL_VOCABULARY
        self._largest = vocabulary if self._sums else max(top_k, default=0)
        # 2 stands for no top_p, since no sum of probabilities reaches 2.
        self._top_p = mx.array(
            [probability if probability < 1.0 else 2.0 for probability in top_p]
        )[:, None]
        self._beyond_top_k = mx.array(
            [self._largest - (count or self._largest) for count in top_k], dtype=mx.int32
        )[:, None]

    def least_allowed(self, logprobs: mx.array, largest: mx.array) -> mx.array | None:
        """The lowest log probability of tokens that may be chosen, (rows, 1); None: all tokens may.

        `logprobs`: (rows, vocabulary), float32, of total probability 1. `largest`: (rows, 1), the
        largest log probability of each row.
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
        """The log probability at which top_p or top_k is reached first, (rows, 1)."""
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
    """The result of `Filters._least_of_ranked`, with NumPy."""
    ascending = np.sort(np.array(logprobs), axis=-1)
    reached = np.cumsum(np.exp(ascending[:, ::-1]), axis=-1)[:, ::-1]
    beyond_top_p = (reached >= np.array(top_p)).sum(axis=-1, keepdims=True) - 1
    beyond = np.maximum(beyond_top_p, np.array(beyond_top_k))
    return mx.array(np.take_along_axis(ascending, beyond, axis=-1))


def _largest(values: mx.array, count: int) -> mx.array:
    """The `count` largest values of each row, ascending."""
    rows, vocabulary = values.shape
    if count == vocabulary:
        return mx.sort(values, axis=-1)
    block_width = width(vocabulary)
    # The largest values are in the `count` blocks with the largest maxima.
    if 2 * count * block_width <= vocabulary:
        blocks = in_blocks(values)
        heads = blocks.max(axis=-1)
        chosen = mx.argpartition(heads, -count, axis=-1)[:, -count:]
        values = mx.take_along_axis(blocks, chosen[:, :, None], axis=1).reshape(rows, -1)
    return mx.sort(mx.topk(values, count, axis=-1), axis=-1)


class Xtc:
    """XTC (exclude top choices) for the rows of a batch that aren't greedy. Random numbers tell
    before a step which rows XTC changes. If it changes none, nothing is computed.
    """

    def __init__(self, rows: Sequence[RowSampling], vocabulary: int) -> None:
        self._rows = rows
        self._vocabulary = vocabulary
        self._any = any(row.xtc_probability > 0.0 for row in rows)

    def apply(
        self,
        logprobs: mx.array,
        least_allowed: mx.array | None,
        streams: Sequence[int],
        positions: Sequence[int],
    ) -> mx.array | None:
        """Log probabilities (rows, vocabulary) without the excluded tokens; None if XTC changes no
        row in this step.
        """
        if not self._any:
            return None
        numbers = zip(self._rows, streams, positions, strict=True)
        turns = [
            row
            for row, (number, stream, position) in enumerate(numbers)
            if number.xtc_probability > 0.0 and chance(stream, position) < number.xtc_probability
        ]
        if not turns:
            return None
        rows = [self._rows[row] for row in turns]
        indices = mx.array(turns, dtype=mx.uint32)
        thresholds = [
            math.log(sampling.xtc_threshold) if sampling.xtc_threshold > 0.0 else -math.inf
            for sampling in rows
        ]
        changed = mx.array(logprobs)
        changed[indices] = without_top_choices(
            logprobs[indices],
            None if least_allowed is None else least_allowed[indices],
            mx.array(thresholds)[:, None],
            self._spared(rows),
        )
        return changed

    def _spared(self, rows: Sequence[RowSampling]) -> mx.array | None:
        pairs = [(row, token_id) for row, of in enumerate(rows) for token_id in of.xtc_spared]
        if not pairs:
            return None
        spared = mx.zeros((len(rows), self._vocabulary), dtype=mx.bool_)
        places, token_ids = zip(*pairs, strict=True)
        spared[mx.array(places), mx.array(token_ids)] = True
        return spared


def without_top_choices(
    logprobs: mx.array,
    least_allowed: mx.array | None,
    log_thresholds: mx.array,
    spared: mx.array | None,
) -> mx.array:
    """Log probabilities (rows, vocabulary), minus infinity for excluded tokens: for all that
    exceed the threshold, except the least likely of these.

    `least_allowed`, `log_thresholds`: (rows, 1). `spared`: (rows, vocabulary), true for tokens that
    are never excluded.
    """
    allowed = logprobs
    if least_allowed is not None:
        allowed = mx.where(logprobs >= least_allowed, logprobs, -math.inf)
    likely = allowed - mx.logsumexp(allowed, axis=-1, keepdims=True) > log_thresholds
    least_likely = mx.where(likely, logprobs, math.inf).min(axis=-1, keepdims=True)
    excluded = logprobs > least_likely
    if spared is not None:
        excluded = excluded & ~spared
    return mx.where(excluded, -math.inf, logprobs)


def masses(
    logprobs: mx.array,
    largest: mx.array,
    inverse_temperatures: mx.array,
    least_allowed: mx.array | None,
    *,
    on_cpu: bool,
) -> mx.array:
    """The mass of each token, (rows, vocabulary): its probability as a ratio to that of the row's
    likeliest token, and 0 for tokens below `least_allowed`.

    `logprobs`: (rows, vocabulary). The other arrays: (rows, 1).
    """
    if least_allowed is None:
        all_of = _all_on_cpu if on_cpu else _all
        return all_of(logprobs, largest, inverse_temperatures)
    filter_of = _filtered_on_cpu if on_cpu else _filtered
    return filter_of(logprobs, largest, inverse_temperatures, least_allowed)


@partial(mx.compile, shapeless=True)
def _all(logprobs: mx.array, largest: mx.array, inverse: mx.array) -> mx.array:
    return mx.exp((logprobs - largest) * inverse)


@partial(mx.compile, shapeless=True)
def _filtered(
    logprobs: mx.array, largest: mx.array, inverse: mx.array, least: mx.array
) -> mx.array:
    return mx.where(logprobs >= least, mx.exp((logprobs - largest) * inverse), 0.0)


@partial(mx.compile, shapeless=True)
def _all_on_cpu(logprobs: mx.array, largest: mx.array, inverse: mx.array) -> mx.array:
    return _exponential((logprobs - largest) * inverse)


@partial(mx.compile, shapeless=True)
def _filtered_on_cpu(
    logprobs: mx.array, largest: mx.array, inverse: mx.array, least: mx.array
) -> mx.array:
    return mx.where(logprobs >= least, _exponential((logprobs - largest) * inverse), 0.0)


def _exponential(exponents: mx.array) -> mx.array:
    """The exponentials of numbers that aren't positive, with a relative error of 5e-5. A CPU
    computes these products for several numbers at a time. MLX's own exponential takes one number at
    a time on a CPU: for a vocabulary, longer than all other steps in this file together.
    """
    part = mx.maximum(exponents, _LEAST_EXPONENT) * (1.0 / (1 << _SQUARINGS))
    series = 1.0 + part * (1.0 / 8)
    for divisor in (7, 6, 5, 4, 3, 2, 1):
        series = 1.0 + part * (1.0 / divisor) * series
    for _ in range(_SQUARINGS):
        series = series * series
    return series


def draw(masses: mx.array, uniforms: mx.array) -> mx.array:
    """One token id a row, chosen in proportion to its mass: a token without mass is never chosen.

    `masses`: (rows, vocabulary), float32, not negative, the largest of a row not far from 1.
    `uniforms`: (rows, 2), in (0, 1) as `settings.uniforms` makes them. In a large vocabulary the
    first number chooses a block, and the second a token of the block. In a small vocabulary the
    first number chooses the token, in fewer operations.
    """
    vocabulary = masses.shape[1]
    if vocabulary <= _LONGEST_SUM or width(vocabulary) == vocabulary:
        return _choose(masses, uniforms[:, :1])
    blocks = in_blocks(masses)
    outer = _choose(blocks.sum(axis=-1), uniforms[:, :1])
    block = mx.take_along_axis(blocks, outer[:, None, None], axis=1)[:, 0]
    return outer * width(vocabulary) + _choose(block, uniforms[:, 1:])


def _choose(masses: mx.array, uniform: mx.array) -> mx.array:
    """The first entry of each row at which the cumulative sum exceeds `uniform` of the total."""
    reached = mx.cumsum(masses, axis=-1)
    return mx.argmax(reached > uniform * reached[:, -1:], axis=-1)


def width(vocabulary: int) -> int:
    """The entries of a block. All blocks have equally many, so that a row is divided without a
    copy. A vocabulary that can't be divided so is a single block.
    """
    divisor = math.gcd(vocabulary, _MOST)
    return divisor if divisor >= _LEAST else vocabulary


def in_blocks(values: mx.array) -> mx.array:
    """Shape (rows, vocabulary) to (rows, blocks, width)."""
    rows, vocabulary = values.shape
    block_width = width(vocabulary)
    return values.reshape(rows, vocabulary // block_width, block_width)
