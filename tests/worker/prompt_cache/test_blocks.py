"""Caches of long prompts are cut and joined by arrays within MLX's bound. The arrays of these tests
have shapes, and no memory: MLX computes nothing that nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from worker.prompt_cache.blocks import Block, Cutter
from worker.prompt_cache.path import BLOCK_TOKENS
from worker.system import memory
from worker.system.memory import MOST_ELEMENTS

LAYERS, HEADS, WIDTH = 36, 8, 128
# The keys and values of all layers together have more elements than an array may have.
LONG_BLOCKS = 100_000 // BLOCK_TOKENS


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The elements of each array that is made of several."""
    made: list[int] = []
    concatenate = mx.concatenate

    def noted(arrays: list[mx.array], axis: int = 0) -> mx.array:
        made.append(sum(array.size for array in arrays))
        return concatenate(arrays, axis=axis)

    monkeypatch.setattr(mx, "concatenate", noted)
    monkeypatch.setattr(mx, "async_eval", lambda *_: None)
    return made


def cutter(layers: int = LAYERS, width: int = WIDTH) -> Cutter:
    def model(tokens: mx.array, cache: list[KVCache]) -> mx.array:
        entries = mx.zeros((1, HEADS, tokens.shape[1], width), mx.float16)
        for leaf in cache:
            leaf.update_and_fetch(entries, entries)
        return tokens

    return Cutter(model, lambda: [KVCache() for _ in range(layers)])


def test_a_long_prompt_is_joined_from_arrays_within_the_bound(sizes: list[int]) -> None:
    block = Block((mx.zeros((2 * LAYERS, HEADS, BLOCK_TOKENS, WIDTH), mx.float16),))
    caches = cutter().join([block] * LONG_BLOCKS, None)
    assert max(sizes) <= MOST_ELEMENTS < sum(sizes)
    shape = (1, HEADS, LONG_BLOCKS * BLOCK_TOKENS, WIDTH)
    assert [(leaf.keys.shape, leaf.values.shape) for leaf in caches] == [(shape, shape)] * LAYERS


def test_a_long_prompt_is_cut_by_arrays_within_the_bound(sizes: list[int]) -> None:
    caches = [KVCache() for _ in range(LAYERS)]
    for leaf in caches:
        leaf.keys = leaf.values = mx.zeros((1, HEADS, LONG_BLOCKS * BLOCK_TOKENS, WIDTH))
        leaf.offset = LONG_BLOCKS * BLOCK_TOKENS
    blocks = cutter().cut(caches, 0, 0, LONG_BLOCKS)
    assert max(sizes) <= MOST_ELEMENTS < sum(sizes)
    shape = (2 * LAYERS, HEADS, BLOCK_TOKENS, WIDTH)
    assert [array.shape for block in blocks for array in block.arrays] == [shape] * LONG_BLOCKS


@pytest.mark.parametrize("most_layers", [1, 2, 3, 100])
def test_caches_cut_and_joined_in_pieces_are_the_same(
    most_layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, width = 3, 4
    tokens = blocks * BLOCK_TOKENS
    monkeypatch.setattr(memory, "MOST_ELEMENTS", most_layers * HEADS * tokens * width)
    caches = [KVCache() for _ in range(3)]
    random: Callable[..., Any] = mx.random.normal
    for leaf in caches:
        leaf.update_and_fetch(*(random((1, HEADS, tokens, width)) for _ in range(2)))
    own = cutter(3, width)
    joined = own.join(own.cut(caches, 0, 0, blocks), None)
    for leaf, again in zip(caches, joined, strict=True):
        assert mx.array_equal(leaf.keys[:, :, :tokens], again.keys)
        assert mx.array_equal(leaf.values[:, :, :tokens], again.values)
