"""From log probabilities to how likely each token is beside the likeliest, at a temperature.

Compiled, and without shapes: one pass over the vocabulary, whatever the rows.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import mlx.core as mx

# The exponential of less is no normal float32, which processors are slow with. Beside the mass of
# the likeliest token, which is 1, it makes no difference to any sum.
_LEAST_EXPONENT: Final = -87.0
_SQUARINGS: Final = 7


def masses(
    logprobs: mx.array,
    largest: mx.array,
    inverse_temperatures: mx.array,
    least_kept: mx.array | None,
    *,
    on_cpu: bool,
) -> mx.array:
    """Shape (rows, vocabulary), as `logprobs`; all others (rows, 1). `largest` of each row has 1,
    what is below `least_kept` 0.
    """
    if least_kept is None:
        all_of = _all_on_cpu if on_cpu else _all
        return all_of(logprobs, largest, inverse_temperatures)
    kept_of = _kept_on_cpu if on_cpu else _kept
    return kept_of(logprobs, largest, inverse_temperatures, least_kept)


@partial(mx.compile, shapeless=True)
def _all(logprobs: mx.array, largest: mx.array, inverse: mx.array) -> mx.array:
    return mx.exp((logprobs - largest) * inverse)


@partial(mx.compile, shapeless=True)
def _kept(logprobs: mx.array, largest: mx.array, inverse: mx.array, least: mx.array) -> mx.array:
    return mx.where(logprobs >= least, mx.exp((logprobs - largest) * inverse), 0.0)


@partial(mx.compile, shapeless=True)
def _all_on_cpu(logprobs: mx.array, largest: mx.array, inverse: mx.array) -> mx.array:
    return _exponential((logprobs - largest) * inverse)


@partial(mx.compile, shapeless=True)
def _kept_on_cpu(
    logprobs: mx.array, largest: mx.array, inverse: mx.array, least: mx.array
) -> mx.array:
    return mx.where(logprobs >= least, _exponential((logprobs - largest) * inverse), 0.0)


def _exponential(exponents: mx.array) -> mx.array:
    """Of what is not positive, to 5e-5 of itself. MLX computes its own one by one on a CPU, and of
    the whole vocabulary that takes longer than all else here together; these products are
    computed several at a time.
    """
    part = mx.maximum(exponents, _LEAST_EXPONENT) * (1.0 / (1 << _SQUARINGS))
    series = 1.0 + part * (1.0 / 8)
    for divisor in (7, 6, 5, 4, 3, 2, 1):
        series = 1.0 + part * (1.0 / divisor) * series
    for _ in range(_SQUARINGS):
        series = series * series
    return series
