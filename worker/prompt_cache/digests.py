"""Digests of arrays: whole numbers, computed where the arrays are, that show each changed bit.

A change of one number always changes the digest. Two numbers in each other's place, or all numbers
shifted, leave it unchanged with a chance of about one in four billion.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import mlx.core as mx

# Odd factors lose no bit of a number modulo 2**32.
_FACTOR: Final = 0x9E3779B1
_OTHER_FACTOR: Final = 0x85EBCA6B
_WORDS: Final = {4: mx.uint32, 2: mx.uint16, 1: mx.uint8}


def digest(arrays: Iterable[mx.array]) -> mx.array:
    """The digest of these arrays, in their order. Nothing is computed yet."""
    total = mx.array(1, mx.uint32)
    for array in arrays:
        if array.size:
            total = _scattered(total) + _sum(_words(array))
    return total


def _words(array: mx.array) -> mx.array:
    """The array's bytes as numbers, shape (rows, columns)."""
    array = array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)
    row_bytes = array.shape[-1] * array.dtype.size
    word_bytes = next(size for size in _WORDS if row_bytes % size == 0)
    return mx.contiguous(array).view(_WORDS[word_bytes]).astype(mx.uint32)


def _sum(words: mx.array) -> mx.array:
    rows, columns = words.shape
    sums = (_scattered(words) * _weights(columns)).sum(axis=1)
    return (_scattered(sums) * _weights(rows)).sum()


def _scattered(words: mx.array) -> mx.array:
    """Other numbers in place of these, so that similar numbers differ in all bits."""
    return (words ^ (words >> 15)) * mx.array(_FACTOR, mx.uint32)


@lru_cache(maxsize=32)
def _weights(count: int) -> mx.array:
    """An odd number for each place."""
    places = mx.arange(1, count + 1, dtype=mx.uint32) * mx.array(_OTHER_FACTOR, mx.uint32)
    weights = _scattered(_scattered(places) ^ (places >> 13)) | 1
    mx.eval(weights)
    return weights
