"""Digests show each changed bit, and numbers in each other's place."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from worker.prompt_cache.digests import digest

TYPES = st.sampled_from([mx.bfloat16, mx.float32, mx.uint32, mx.uint8])
SHAPE = (2, 3, 8, 20)
BYTES = 2 * 3 * 8 * 20


def _array(raw: np.ndarray, dtype: mx.Dtype) -> mx.array:
    return mx.array(raw).view(dtype)


def _raw(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, SHAPE, np.uint8)


@given(TYPES, st.integers(0, 100), st.integers(0, BYTES - 1), st.integers(0, 7))
def test_a_digest_shows_each_bit(dtype: mx.Dtype, seed: int, place: int, bit: int) -> None:
    raw = _raw(seed)
    before = digest([_array(raw, dtype)]).item()
    raw.reshape(-1)[place] ^= 1 << bit
    assert digest([_array(raw, dtype)]).item() != before


@given(TYPES, st.integers(0, 100), st.integers(0, BYTES - 1), st.integers(0, BYTES - 1))
def test_a_digest_shows_a_swap(dtype: mx.Dtype, seed: int, one: int, other: int) -> None:
    raw = _raw(seed)
    flat = raw.reshape(-1)
    assume(flat[one] != flat[other])
    before = digest([_array(raw, dtype)]).item()
    flat[[one, other]] = flat[[other, one]]
    assert digest([_array(raw, dtype)]).item() != before


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_digest_shows_a_shift(axis: int) -> None:
    raw = _raw(0)
    before = digest([_array(raw, mx.bfloat16)]).item()
    assert digest([_array(np.roll(raw, 1, axis), mx.bfloat16)]).item() != before


def test_a_digest_depends_on_the_order_of_arrays() -> None:
    arrays = [_array(_raw(seed), mx.float32) for seed in range(2)]
    assert digest(arrays).item() == digest([mx.array(array) for array in arrays]).item()
    assert digest(arrays).item() != digest(arrays[::-1]).item()


def test_digests_take_arrays_of_any_shape() -> None:
    odd = [mx.array(7), mx.zeros((1, 2, 0)), mx.array([True, False, True]), mx.zeros((3, 1))]
    assert digest(odd).item() != digest(odd[1:]).item()
