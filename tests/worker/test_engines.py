"""The engines on real models: exact whoever shares the batch, and cancelled at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from mlx_lm.models.cache import make_prompt_cache

from tests.support import shapes
from worker.engines.batched import BatchedEngine
from worker.engines.sequence import Engine, Sequence
from worker.engines.sequential import SequentialEngine
from worker.loading import LoadedModel, load

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
        engine = BatchedEngine(model.model, model.eos_token_ids, 8)
        engine.add(sequence)
        alone.update(_run(engine))
    together = BatchedEngine(model.model, model.eos_token_ids, 8)
    for sequence in _sequences(model, PROMPTS):
        together.add(sequence)
    assert _run(together) == alone


def test_more_sequences_than_the_batch_takes(models: Callable[[str], LoadedModel]) -> None:
    model = models("full attention")
    engine = BatchedEngine(model.model, model.eos_token_ids, 2)
    for sequence in _sequences(model, PROMPTS):
        engine.add(sequence)
    assert {len(each) for each in _run(engine).values()} == {24}


def test_removed_sequences_get_no_more_tokens(models: Callable[[str], LoadedModel]) -> None:
    model = models("full attention")
    engine = BatchedEngine(model.model, model.eos_token_ids, 8)
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
