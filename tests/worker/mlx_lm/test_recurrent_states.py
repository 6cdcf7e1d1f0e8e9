"""After a wrong guess a row has its recurrent state from before the step, and no other row has."""

from __future__ import annotations

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache

from worker.mlx_lm.recurrent_states import RecurrentStates

ROWS = 3


def _layer() -> ArraysCache:
    """A convolution's last tokens, and a state: arrays with as many dimensions as models have."""
    cache = ArraysCache(2)
    cache.cache = [mx.zeros((ROWS, 4, 8)), mx.zeros((ROWS, 2, 8, 8))]
    return cache


def _compute(cache: ArraysCache) -> None:
    cache.cache = [array + 1 for array in cache.cache]


def test_chosen_rows_go_back() -> None:
    layers = [_layer(), _layer()]
    states = RecurrentStates.before([KVCache(), *layers], [2] * ROWS)
    assert states is not None
    for layer in layers:
        _compute(layer)
    states.restore([True, False, True])
    for layer in layers:
        for array in layer.cache:
            assert array.reshape(ROWS, -1).max(axis=1).tolist() == [0, 1, 0]
            assert array.reshape(ROWS, -1).min(axis=1).tolist() == [0, 1, 0]


def test_padding_of_a_step_is_gone_after_it() -> None:
    layer = _layer()
    states = RecurrentStates.before([layer], [1, 3, 2])
    assert states is not None
    mask = layer.make_mask(3)
    assert mask is not None
    assert mask.sum(axis=1).tolist() == [1, 3, 2]
    states.finalize()
    assert layer.make_mask(1) is None


def test_caches_without_recurrent_states_have_nothing_to_restore() -> None:
    assert RecurrentStates.before([KVCache()], [1, 2]) is None
