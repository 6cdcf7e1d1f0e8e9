"""A row whose logits aren't valid gives out none of their tokens, and goes on without cached
blocks; the rows beside it notice nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from tests.support import shapes
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import CacheRoom, CacheSizes
from worker.engines.sequence import Engine, Sequence, SpoiltSequence, Token
from worker.engines.sequential import SequentialEngine
from worker.load.loading import LoadedModel, load
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.path import Paths
from worker.sampling.settings import RowSampling

UNBOUNDED = CacheRoom(CacheSizes(0, 0, 1.0))
TOKENS = 40
# Spoils logits, (rows, tokens, vocabulary).
Spoil = Callable[[mx.array], mx.array]


class FaultyModel:
    """A model whose logits are spoilt in the chosen calls for rows that decode, counted from 0."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.spoil: dict[int, Spoil] = {}
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, tokens: mx.array, *arguments: Any, **options: Any) -> mx.array:
        logits: mx.array = self._model(tokens, *arguments, **options)
        spoil = self.spoil.get(self.calls)
        self.calls += 1
        return logits if spoil is None else spoil(logits)


def _nan(row: int, place: int = -1) -> Spoil:
    def spoil(logits: mx.array) -> mx.array:
        logits = mx.array(logits)
        logits[min(row, logits.shape[0] - 1), place, 7] = mx.nan
        return logits

    return spoil


def _all_rows(logits: mx.array) -> mx.array:
    return mx.full(logits.shape, 0.5)


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load(str(shapes.DEMO), lambda _done, _total: None, lambda: False)


@pytest.fixture
def faulty(demo: LoadedModel) -> FaultyModel:
    return FaultyModel(demo.model)


def _sequences(demo: LoadedModel, count: int = 4) -> list[Sequence]:
    """Greedy and sampled ones, with scores and without."""
    return [
        Sequence(
            str(index),
            demo.tokenizer.encode(f"Story number {index} begins with a ship."),
            TOKENS,
            RowSampling(index, 0.9) if index % 2 else None,
            ignore_eos=True,
            logprobs=2 if index % 3 == 0 else None,
        )
        for index in range(count)
    ]


def _run(engine: Engine) -> Iterator[Token]:
    for _ in range(3000):
        if engine.active + engine.waiting == 0:
            return
        yield from engine.step()
    raise AssertionError("the engine never ended")


def _texts(engine: Engine, sequences: list[Sequence]) -> dict[str, list[int]]:
    for sequence in sequences:
        engine.add(sequence)
    texts: dict[str, list[int]] = {sequence.request_id: [] for sequence in sequences}
    for token in _run(engine):
        assert (token.score is not None) == (int(token.request_id) % 3 == 0)
        texts[token.request_id].append(token.token_id)
    return texts


def _batched(model: Any, prompt_cache: PromptCache | None = None) -> BatchedEngine:
    return BatchedEngine(model, (), 8, replace(UNBOUNDED), prompt_cache, guesses=False)


def _sequential(model: Any) -> SequentialEngine:
    return SequentialEngine(model, (), replace(UNBOUNDED))


@pytest.mark.parametrize("make", [_batched, _sequential])
@pytest.mark.parametrize("spoil", [_nan(2), _all_rows])
@pytest.mark.parametrize("call", [6, 9, 20, 35])
def test_the_texts_are_those_without_the_fault(
    make: Callable[[Any], Engine], spoil: Spoil, call: int, demo: LoadedModel, faulty: FaultyModel
) -> None:
    whole = _texts(make(demo.model), _sequences(demo))
    engine = make(faulty)
    faulty.spoil = {faulty.calls + call: spoil}
    assert _texts(engine, _sequences(demo)) == whole
    spoilt = engine.collect_spoilt()
    assert spoilt
    assert all(sequence.goes_on and not sequence.blocks for sequence in spoilt)
    assert not engine.collect_spoilt(), "they are reported once"


@pytest.mark.parametrize("make", [_batched, _sequential])
def test_a_row_that_is_spoilt_again_leaves(
    make: Callable[[Any], Engine], demo: LoadedModel, faulty: FaultyModel
) -> None:
    (sequence,) = _sequences(demo, 1)
    whole = _texts(make(demo.model), [sequence])["0"]
    engine = make(faulty)
    first = faulty.calls + 12
    faulty.spoil = dict.fromkeys(range(first, first + 60), _nan(0))
    given = _texts(engine, [sequence])["0"]
    assert 0 < len(given) < TOKENS
    assert given == whole[: len(given)]
    assert engine.collect_spoilt() == [SpoiltSequence("0", True, 0), SpoiltSequence("0", False, 0)]
    assert engine.active + engine.waiting == 0


def test_a_sequence_that_comes_cold_has_one_try(demo: LoadedModel, faulty: FaultyModel) -> None:
    (sequence,) = _sequences(demo, 1)
    engine = _batched(faulty)
    faulty.spoil = dict.fromkeys(range(faulty.calls, faulty.calls + 99), _nan(0))
    assert _texts(engine, [sequence.as_cold()]) == {"0": []}
    assert engine.collect_spoilt() == [SpoiltSequence("0", False, 0)]


@pytest.mark.parametrize("place", [0, 1, 2, -1])
def test_guesses_behind_a_spoilt_place_are_wrong(
    place: int, demo: LoadedModel, faulty: FaultyModel
) -> None:
    """A step of several tokens gives out those before the place."""
    sequences = [replace(sequence, sampling=None) for sequence in _sequences(demo, 3)]
    whole = _texts(_batched(demo.model), sequences)
    engine = BatchedEngine(faulty, (), 8, replace(UNBOUNDED), guesses=True)
    engine.step_costs.ratio = lambda _, width: float(width > 0)  # type: ignore[method-assign]
    wide: list[int] = []
    begun: set[str] = set()

    def spoil(logits: mx.array) -> mx.array:
        if logits.shape[1] < 3 or len(begun) < 3 or wide:
            return logits
        wide.append(logits.shape[1])
        return _nan(1, place)(logits)

    faulty.spoil = dict.fromkeys(range(faulty.calls, faulty.calls + 400), spoil)
    predicted = [
        replace(sequence, prediction=tuple(whole[sequence.request_id])) for sequence in sequences
    ]
    for sequence in predicted:
        engine.add(sequence)
    texts: dict[str, list[int]] = {name: [] for name in whole}
    for token in _run(engine):
        begun.add(token.request_id)
        texts[token.request_id].append(token.token_id)
    assert texts == whole
    assert wide, "no step had guesses"
    assert len(engine.collect_spoilt()) == 1


def test_nothing_of_a_spoilt_row_is_left_in_the_caches(
    demo: LoadedModel, faulty: FaultyModel
) -> None:
    """A place in the caches that isn't a number would spoil the row that gets it next."""
    engine = _batched(faulty)
    for sequence in _sequences(demo):
        engine.add(sequence)
    while len(engine.step()) < 4:
        pass
    (batch,) = engine._batches
    group = batch._generator._decoding._groups[0]
    for leaf in group.leaves:
        leaf.keys[1] = leaf.values[1] = mx.nan
    for _ in range(3):
        engine.step()
    assert len(engine.collect_spoilt()) == 1
    arrays = [array for leaf in group.leaves for array in leaf.state]
    assert all(bool(mx.isfinite(array).all().item()) for array in arrays)


def test_doubtful_blocks_are_not_found_again(demo: LoadedModel) -> None:
    caches = Caches(demo.model)
    cache = PromptCache(Cutter(caches.run, caches.make), None)
    paths = Paths(b"root", None, needs_snapshots=False)
    token_ids = [10 + index * 7 % 500 for index in range(5 * 64 + 3)]
    path = paths.find(token_ids, "")
    asked = Sequence("1", token_ids, 8, None, ignore_eos=True, path=path)
    engine = _batched(demo.model, cache)
    whole = _texts(engine, [asked])
    engine.store_blocks()
    assert cache.depth(path, len(token_ids)) == 5

    block = cache._blocks.get(path.keys[2]).block
    block.arrays[0][..., :1, :] = mx.nan
    assert _texts(engine, [asked]) == whole
    assert engine.collect_spoilt() == [SpoiltSequence("1", True, 3)]
    assert cache.depth(path, len(token_ids)) == 2, "the blocks before are proven"
    assert _texts(engine, [asked]) == whole
