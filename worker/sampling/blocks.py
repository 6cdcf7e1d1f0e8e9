"""A row of the vocabulary in blocks: most of the work is then done on one value a block."""

from __future__ import annotations

import math
from typing import Final

import mlx.core as mx

_MOST: Final = 128
_LEAST: Final = 16


def width(vocabulary: int) -> int:
    """Entries in a block: the same in each, so that a row need not be copied to be divided.
    Where the vocabulary has no such divisor, it is a single block.
    """
    divisor = math.gcd(vocabulary, _MOST)
    return divisor if divisor >= _LEAST else vocabulary


def in_blocks(values: mx.array) -> mx.array:
    """Shape (rows, vocabulary) to (rows, blocks, width)."""
    rows, vocabulary = values.shape
    each = width(vocabulary)
    return values.reshape(rows, vocabulary // each, each)
