"""Which rows mlx-lm samples, in which order: it doesn't say so, and another version may differ."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator, StopSequences

from tests.support import shapes
from worker.engines.order import RowOrder
from worker.load.loading import load

FIRST = 10


@pytest.fixture(scope="module")
def model() -> Any:
    return load(str(shapes.DEMO), lambda _done, _total: None, lambda: False).model


@pytest.mark.parametrize("seed", range(3))
def test_every_row_gets_what_was_sampled_for_it(seed: int, model: Any) -> None:
    """A row's token is its own number, whoever came and left meanwhile."""
    chance = random.Random(seed)
    generator = BatchGenerator(
        model, completion_batch_size=8, prefill_batch_size=3, prefill_step_size=7
    )
    order = RowOrder(generator)
    calls = []

    def sampler(logprobs: mx.array) -> mx.array:
        rows = order()
        calls.append(len(rows))
        assert len(rows) == logprobs.shape[0]
        return mx.array([FIRST + each for each in rows], dtype=mx.uint32)

    rows: set[int] = set()
    finished = removed = 0
    for step in range(60):
        for _ in range(chance.choice((0, 0, 1, 2, 5)) if step < 40 else 0):
            prompt = [1] * chance.choice((1, 1, 2, 6, 7, 8, 9, 15, 40))
            (uid,) = generator.insert(
                [prompt],
                max_tokens=[chance.choice((1, 2, 9, 20))],
                samplers=[sampler],
                stop_sequences=[StopSequences()],
            )
            order.insert(uid)
            rows.add(uid)
        if rows and chance.random() < 0.3:
            gone = chance.sample(sorted(rows), min(len(rows), chance.randrange(1, 3)))
            generator.remove(gone)
            order.remove(gone)
            rows -= set(gone)
            removed += len(gone)
        prompt_responses, responses = generator.next()
        order.observe(prompt_responses, responses)
        for response in responses:
            assert response.token == FIRST + response.uid
            if response.finish_reason is not None:
                rows.remove(response.uid)
                finished += 1
    assert finished > 5
    assert removed > 3
    assert max(calls) >= 6
    generator.close()


def test_an_order_that_changes_is_no_longer_trusted() -> None:
    order = RowOrder(SimpleNamespace(_find_uids=lambda _: {}))
    ended = [SimpleNamespace(uid=uid, end_of_prompt=True) for uid in (1, 2)]
    for uid in (1, 2):
        order.insert(uid)
    order.observe(ended, [])
    swapped = [SimpleNamespace(uid=uid, finish_reason=None) for uid in (2, 1)]
    with pytest.raises(RuntimeError, match="another order"):
        order.observe([], swapped)
