"""The engines on real models: exact whoever shares the batch, and cancelled at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from mlx_lm.models.cache import make_prompt_cache

from tests.support import shapes
from worker.engines.batched import BatchedEngine
from worker.engines.room import CacheRoom, measure
from worker.engines.sequence import Engine, Sequence
from worker.engines.sequential import SequentialEngine
from worker.loading import LoadedModel, load
from worker.sampling import KeyedSampler

UNBOUNDED = CacheRoom(0, 0, None)
SHAPES: dict[str, Callable[[Path], Path]] = {
    "full attention": lambda _: shapes.DEMO,
    "sliding window": shapes.sliding_window,
    "state space": shapes.state_space,
}
PROMPTS = [
    "Bulkhead",
    "Once there was a ship with seven holds and a captain who counted them every night. " * 3,
    "A",
    "What does a watertight door do, and who closes it when the water comes in? " * 8,
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LoadedModel]:
    loaded: dict[str, LoadedModel] = {}

    def get(name: str) -> LoadedModel:
        if name not in loaded:
            build = {**SHAPES, "chunked attention": shapes.chunked_attention}[name]
            folder = build(tmp_path_factory.mktemp("models") / name)
            loaded[name] = load(str(folder), lambda _done, _total: None, lambda: False)
        return loaded[name]

    return get


def _sequences(model: LoadedModel, prompts: Iterable[str], max_tokens: int = 24) -> list[Sequence]:
    return [
        Sequence(str(index), model.tokenizer.encode(prompt), max_tokens, None, ignore_eos=True)
        for index, prompt in enumerate(prompts)
    ]


def _run(engine: Engine, most_steps: int = 2000) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    finished = {}
    for _ in range(most_steps):
        if engine.active + engine.waiting == 0:
            break
        for token in engine.step():
            tokens.setdefault(token.request_id, []).append(token.token_id)
            if token.finish_reason is not None:
                assert token.request_id not in finished
                finished[token.request_id] = token.finish_reason
    assert set(finished) == set(tokens)
    return tokens


@pytest.mark.parametrize("name", SHAPES)
def test_a_batch_gives_what_each_gives_alone(
    name: str, models: Callable[[str], LoadedModel]
) -> None:
    model = models(name)
    alone = {}
    for sequence in _sequences(model, PROMPTS):
        engine = BatchedEngine(model.model, model.eos_token_ids, 8, UNBOUNDED)
        engine.add(sequence)
        alone.update(_run(engine))
    together = BatchedEngine(model.model, model.eos_token_ids, 8, UNBOUNDED)
    for sequence in _sequences(model, PROMPTS):
        together.add(sequence)
    assert _run(together) == alone


# Two that pass the first step of tokens while they generate, and two that don't.
NEARLY_FULL = ["A ship with seven holds. " * 29, "B", "The captain counted them. " * 28, "C"]


def _room(model: LoadedModel, rows: int, tokens: int) -> CacheRoom:
    """Room for so many rows of that length at the moment when the last of them joins."""
    measured = measure(model.model, None)
    bytes_ = measured.batch_bytes(rows, tokens) + measured.batch_bytes(rows - 1, tokens)
    return measured._replace(room_bytes=bytes_)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("seed", [None, 3])
def test_room_for_a_few_gives_the_same(
    name: str, seed: int | None, models: Callable[[str], LoadedModel]
) -> None:
    """Who doesn't fit waits, and who outgrows the room leaves and comes back: nobody notices."""
    model = models(name)

    def sequences() -> list[Sequence]:
        sampler = None if seed is None else KeyedSampler(seed, 1.0, 0.0, 0, 0.0)
        return [
            replace(each, sampler=sampler and sampler.again_after(0))
            for each in _sequences(model, NEARLY_FULL, max_tokens=40)
        ]

    free = BatchedEngine(model.model, model.eos_token_ids, 8, UNBOUNDED)
    narrow = BatchedEngine(model.model, model.eos_token_ids, 8, _room(model, 2, 256))
    for engine in (free, narrow):
        for sequence in sequences():
            engine.add(sequence)
    narrow.step()
    assert (narrow.active, narrow.waiting) == (2, 2)
    most_rows, put_aside = 0, False
    expected = _run(free)
    tokens: dict[str, list[int]] = {}
    while narrow.active + narrow.waiting:
        waiting = narrow.waiting
        for token in narrow.step():
            tokens.setdefault(token.request_id, []).append(token.token_id)
        assert (
            narrow._room.holds(len(narrow._rows), narrow._longest_soon() - 2) or narrow.active == 1
        )
        most_rows = max(most_rows, narrow.active)
        put_aside = put_aside or narrow.waiting > waiting
    assert tokens == expected
    # States do not grow.
    assert (most_rows, put_aside) == (2, name != "state space")


def test_the_room_of_a_model(models: Callable[[str], LoadedModel]) -> None:
    config = json.loads((shapes.DEMO / "config.json").read_text())
    token_bytes = (
        config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * 2 * 4
    )
    room = measure(models("full attention").model, 1000 * token_bytes)
    assert (room.token_bytes, room.row_bytes, room.most_tokens) == (token_bytes, 0, 768)
    windowed = measure(models("sliding window").model, None)
    assert windowed.row_bytes == 2 * 32 * 2 * 16 * 2 * 4
    assert windowed.most_tokens is None
    states = measure(models("state space").model, 10)
    assert states.token_bytes == 0
    assert states.row_bytes > 0
    assert states.takes(0, 0, 100), "alone it may always run"
    assert not states.takes(1, 100, 100)


def test_more_sequences_than_the_batch_takes(models: Callable[[str], LoadedModel]) -> None:
    model = models("full attention")
    engine = BatchedEngine(model.model, model.eos_token_ids, 2, UNBOUNDED)
    for sequence in _sequences(model, PROMPTS):
        engine.add(sequence)
    assert {len(each) for each in _run(engine).values()} == {24}


def test_removed_sequences_get_no_more_tokens(models: Callable[[str], LoadedModel]) -> None:
    model = models("full attention")
    engine = BatchedEngine(model.model, model.eos_token_ids, 8, UNBOUNDED)
    for sequence in _sequences(model, PROMPTS):
        engine.add(sequence)
    while not engine.step():
        pass
    engine.remove(["0", "3", "unknown"])
    assert set(_run(engine)) == {"1", "2"}
    engine.remove(["1"])
    assert engine.active == 0


def test_caches_that_cannot_be_merged(models: Callable[[str], LoadedModel]) -> None:
    model = models("chunked attention")
    assert not all(hasattr(cache, "merge") for cache in make_prompt_cache(model.model))
    chunks = []
    engine = SequentialEngine(model.model, model.eos_token_ids, lambda: chunks.append(1))
    for sequence in _sequences(model, PROMPTS):
        engine.add(sequence)
    engine.remove(["2"])
    tokens = _run(engine)
    assert {key: len(each) for key, each in tokens.items()} == {"0": 24, "1": 24, "3": 24}
    assert len(chunks) > 3, "a long prompt goes through in several chunks"


def test_a_sequence_removed_in_its_prefill(models: Callable[[str], LoadedModel]) -> None:
    model = models("chunked attention")
    engine = SequentialEngine(model.model, model.eos_token_ids, lambda: engine.remove(["3"]))
    for sequence in _sequences(model, PROMPTS)[3:]:
        engine.add(sequence)
    assert engine.step() == []
    assert engine.active + engine.waiting == 0
