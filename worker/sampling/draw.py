"""From probabilities to tokens by the inverse of their cumulative sum."""

from __future__ import annotations

from typing import Final

import mlx.core as mx

from worker.sampling.blocks import in_blocks, width

# Beyond it what rounds off a float32 sum would be missed among the unlikely tokens.
_LONGEST_SUM: Final = 4096


def draw(masses: mx.array, uniforms: mx.array) -> mx.array:
    """One token id a row, each chosen in proportion to its mass. One without mass never is.

    `masses`: (rows, vocabulary), float32, not negative, the largest of a row not far from 1.
    `uniforms`: (rows, 2), in (0, 1) as `settings.uniforms` makes them. In a large vocabulary a
    block is chosen by the first number, and a token in it by the second; in a small one the first
    is enough, and every operation less counts.
    """
    vocabulary = masses.shape[1]
    if vocabulary <= _LONGEST_SUM or width(vocabulary) == vocabulary:
        return _choose(masses, uniforms[:, :1])
    blocks = in_blocks(masses)
    outer = _choose(blocks.sum(axis=-1), uniforms[:, :1])
    block = mx.take_along_axis(blocks, outer[:, None, None], axis=1)[:, 0]
    return outer * width(vocabulary) + _choose(block, uniforms[:, 1:])


def _choose(masses: mx.array, uniform: mx.array) -> mx.array:
    """The first entry of each row whose cumulative sum is beyond that part of the total."""
    reached = mx.cumsum(masses, axis=-1)
    return mx.argmax(reached > uniform * reached[:, -1:], axis=-1)
