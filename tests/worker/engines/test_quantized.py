"""Rows with quantized caches: the text of mlx-lm's own loop for one sequence, in any company."""

from __future__ import annotations

import random
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from protocol.requests import Sampling, SamplingDefaults
from tests.support import shapes
from tests.support.stepping import step
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches, RowSampler, decode
from worker.engines.room import CacheRoom, CacheSizes
from worker.engines.sequence import Sequence
from worker.load.loading import LoadedModel, load
from worker.mlx_lm.caches import leaves_of
from worker.sampling.settings import make_row_sampling

GREEDY = Sampling(seed=1, temperature=0.0)
SEEDED = Sampling(seed=7, temperature=1.1, top_p=0.95)


@pytest.fixture(scope="module", params=["as many keys", "grouped"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("models") / "model"
    heads = 2 if request.param == "as many keys" else 6
    shapes.full_attention(folder, heads)
    return load(str(folder), lambda _done, _total: None, lambda: False)


def _sequence(
    model: LoadedModel, name: str, prompt: list[int], sampling: Sampling, most: int
) -> Sequence:
    row = make_row_sampling(sampling, SamplingDefaults(), model.vocabulary)
    return Sequence(name, prompt, most, row, ignore_eos=True)


def _mlx_lms_own(model: LoadedModel, sequence: Sequence, bits: int) -> list[int]:
    caches: list[Any] = [QuantizedKVCache(group_size=64, bits=bits) for _ in model.model.layers]
    if len(sequence.token_ids) > 1:
        model.model(mx.array([sequence.token_ids[:-1]]), cache=caches)
    sampler = RowSampler(sequence, model.model)
    return [token.token_id for token in decode(sequence, caches, sampler)]


@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_rows_of_unlike_length_join_leave_and_are_put_aside(
    model: LoadedModel, sampling: Sampling, bits: int
) -> None:
    chance = random.Random(bits)
    sequences = [
        _sequence(
            model,
            str(index),
            [chance.randrange(5, 600) for _ in range(length)],
            sampling,
            chance.randrange(5, 40),
        )
        for index, length in enumerate([1, 300, 7, 120, 2, 64])
    ]
    expected = {sequence.request_id: _mlx_lms_own(model, sequence, bits) for sequence in sequences}
    # A few tokens of padding cost as much as a group.
    room = CacheRoom(CacheSizes(1_000_000, 0, 1.0))
    engine = BatchedEngine(Caches(model.model, kv_bits=bits).model, (), 4, room)
    made: dict[str, list[int]] = {values.request_id: [] for values in sequences}
    coming = list(sequences)
    steps = most_groups = 0
    while coming or engine.active + engine.waiting:
        if coming and steps % 3 == 0:
            engine.add(coming.pop(0))
        for token in step(engine):
            made[token.request_id].append(token.token_id)
        steps += 1
        most_groups = max(most_groups, *(len(row_batch.sizes()) for row_batch in engine._batches))
        if steps == 20:
            batch = next(batch for batch in engine._batches if len(batch))
            engine._add_first(batch.put_aside(batch.next_to_put_aside()[0]))
    engine.close()
    assert made == expected
    assert most_groups > 1


@pytest.mark.parametrize(("bits", "share"), [(4, 0.35), (8, 0.6)])
def test_a_batch_takes_less(model: LoadedModel, bits: int, share: float) -> None:
    """In 16 bits, which most models have, where scales and biases weigh most."""

    def taken_bytes(made: list[Any]) -> int:
        caches = [item.merge([item, item]) for item in made]
        entries = mx.zeros((2, 2, 2000, 64), mx.bfloat16)
        for cache in caches:
            cache.update_and_fetch(entries, entries)
        return sum(leaf.nbytes for leaf in leaves_of(caches))

    plain = taken_bytes([KVCache(), KVCache()])
    assert taken_bytes(Caches(model.model, kv_bits=bits).make()) <= share * plain
