"""The engines on real models: exact whoever shares the batch, and cancelled at once."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from mlx_lm.models.cache import make_prompt_cache

from protocol.life import peak_share
from tests.support import shapes
from worker.engines.batched_engine import BatchedEngine
from worker.engines.room import BatchSize, CacheRoom, CacheSizes, measure
from worker.engines.sequence import Engine, Sequence
from worker.engines.sequential import SequentialEngine
from worker.load.loading import LoadedModel, load
from worker.sampling.settings import RowSampling
from worker.system import memory

UNBOUNDED = CacheRoom(CacheSizes(0, 0, 1.0))
SHAPES: dict[str, Callable[[Path], Path]] = {
    "full attention": lambda _: shapes.DEMO,
    "sliding window": shapes.sliding_window,
    "state space": shapes.state_space,
}
# Their prompts are computed one at a time.
PADDED: dict[str, Callable[[Path], Path]] = {"padded state": shapes.padded_state}
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
            build = {
                **SHAPES,
                **PADDED,
                "chunked attention": shapes.chunked_attention,
            }[name]
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


@pytest.mark.parametrize("name", [*SHAPES, *PADDED])
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


# Of every kind of filter, greedy ones between them.
SAMPLINGS = [
    None,
    RowSampling(1, 0.7),
    RowSampling(2, 1.5, top_p=0.9),
    RowSampling(3, 1.5, top_k=40),
    RowSampling(4, 1.5, min_p=0.02),
    RowSampling(5, 2.0, top_p=0.95, top_k=20, min_p=0.01),
    RowSampling(6, 3.0, top_p=0.99),
    None,
]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_a_seed_gives_the_same_alone_among_16_and_resumed(
    name: str, models: Callable[[str], LoadedModel]
) -> None:
    """Rows come and leave between steps, with prompts from one token to several chunks."""
    model = models(name)
    tokens = model.tokenizer.encode(PROMPTS[1] + PROMPTS[3])
    lengths = [1, 2, 5, 20, 90, 30, 1, 60]
    asked = [
        Sequence(
            str(index),
            tokens[: lengths[index % 8]] if index < 8 else tokens[index : 5 * index],
            16,
            SAMPLINGS[index % 8],
            ignore_eos=True,
        )
        for index in range(16)
    ]
    alone: dict[str, list[int]] = {}
    for sequence in asked:
        single = SequentialEngine(model.model, model.eos_token_ids, UNBOUNDED)
        single.add(sequence)
        alone |= _run(single)
    together = BatchedEngine(model.model, model.eos_token_ids, 16, UNBOUNDED)
    made: dict[str, list[int]] = {}
    waiting = list(asked)
    while waiting or together.active + together.waiting:
        for _ in range(3):
            if waiting:
                together.add(waiting.pop(0))
        for token in together.step():
            made.setdefault(token.request_id, []).append(token.token_id)
    assert made == alone
    for index, sequence in enumerate(asked[:8]):
        cut = (1, 7)[index % 2]
        resumed = BatchedEngine(model.model, model.eos_token_ids, 16, UNBOUNDED)
        whole = alone[sequence.request_id]
        resumed.add(sequence.rest(whole[:cut]))
        assert _run(resumed)[sequence.request_id] == whole[cut:]


# Two that pass the first step of tokens while they generate, and two that don't.
NEARLY_FULL = ["A ship with seven holds. " * 29, "B", "The captain counted them. " * 28, "C"]


# Each shape, and each way to sample.
SEEDED = [
    *((name, 3) for name in SHAPES),
    ("full attention", None),
    *(pytest.param(name, None, marks=pytest.mark.slow) for name in list(SHAPES)[1:]),
]


def _room(model: LoadedModel, rows: int, tokens: int) -> CacheRoom:
    """Room for so many rows of that length."""
    room = CacheRoom(measure(model.model))
    room.limit_bytes = room.needed_bytes([BatchSize(rows, tokens)])
    return room


def _asked(model: LoadedModel, seed: int | None, max_tokens: int = 40) -> list[Sequence]:
    sampling = None if seed is None else RowSampling(seed)
    return [
        replace(sequence, sampling=sampling)
        for sequence in _sequences(model, NEARLY_FULL, max_tokens)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), SEEDED)
def test_room_for_a_few_gives_the_same(
    name: str, seed: int | None, models: Callable[[str], LoadedModel]
) -> None:
    """Who doesn't fit waits, and who outgrows the room leaves and comes back: nobody notices."""
    model = models(name)
    free = BatchedEngine(model.model, model.eos_token_ids, 8, UNBOUNDED)
    room = _room(model, 2, 256)
    # Its last sequence outgrows what two short ones need.
    room.limit_bytes = max(room.limit_bytes or 0, room.needed_bytes([BatchSize(1, 512)]))
    narrow = BatchedEngine(model.model, model.eos_token_ids, 8, room)
    for engine in (free, narrow):
        for sequence in _asked(model, seed):
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
        sizes = [size for batch in narrow._batches for size in batch.sizes()]
        taken = [BatchSize(size.rows, size.longest_tokens - 2) for size in sizes]
        assert room.holds(taken)
        most_rows = max(most_rows, narrow.active)
        put_aside = put_aside or narrow.waiting > waiting
    assert tokens == expected
    # States do not grow.
    assert (most_rows, put_aside) == (2, name != "state space")


def test_batches_with_arrays_within_the_bound_give_the_same(
    models: Callable[[str], LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models("full attention")
    free = BatchedEngine(model.model, model.eos_token_ids, 8, UNBOUNDED)
    for sequence in _asked(model, 3):
        free.add(sequence)
    expected = _run(free)
    room = CacheRoom(measure(model.model))
    # Two rows, which need a second step of tokens on their way.
    monkeypatch.setattr(memory, "MOST_ELEMENTS", 3 * 256 * room.shape.token_elements)
    bounded = BatchedEngine(model.model, model.eos_token_ids, 8, room)
    for sequence in _asked(model, 3):
        bounded.add(sequence)
    tokens: dict[str, list[int]] = {}
    batches = 0
    while bounded.active + bounded.waiting:
        for token in bounded.step():
            tokens.setdefault(token.request_id, []).append(token.token_id)
        caches = [leaf for batch in bounded._batches for leaf in batch._generator.answer_caches]
        assert all(leaf.keys.size <= memory.MOST_ELEMENTS for leaf in caches)
        batches = max(batches, len(bounded._batches))
    assert tokens == expected
    assert batches > 1


@pytest.mark.usefixtures("steady_pace")
@pytest.mark.parametrize(("name", "seed"), SEEDED)
def test_texts_are_the_same_after_a_recall_and_another_loan(
    name: str, seed: int | None, models: Callable[[str], LoadedModel]
) -> None:
    model = models(name)
    free = BatchedEngine(model.model, model.eos_token_ids, 8, UNBOUNDED)
    room = _room(model, 4, 512)
    wide_bytes = room.limit_bytes
    moving = BatchedEngine(model.model, model.eos_token_ids, 8, room)
    for engine in (free, moving):
        for sequence in _asked(model, seed):
            engine.add(sequence)
    chance = random.Random(1)
    tokens: dict[str, list[int]] = {}
    seen = set()
    while moving.active + moving.waiting:
        if chance.random() < 0.2:
            rows = chance.randrange(5)
            room.limit_bytes = room.needed_bytes([BatchSize(rows, 512)]) if rows < 4 else wide_bytes
            moving.make_room()
        for token in moving.step():
            tokens.setdefault(token.request_id, []).append(token.token_id)
        seen.add(moving.active)
    assert tokens == _run(free)
    assert {0, 1, 2} <= seen


def test_the_last_of_the_lowest_priority_is_put_aside_first(
    models: Callable[[str], LoadedModel],
) -> None:
    """The last to come of the lowest priority leaves; what has run goes before what hasn't."""
    model = models("full attention")
    room = _room(model, 4, 256)
    engine = BatchedEngine(model.model, model.eos_token_ids, 4, room)
    priorities = {"a": 1, "b": 0, "c": 0, "d": 1, "e": 0, "f": 1}
    for name, priority in priorities.items():
        ids = model.tokenizer.encode("A ship")
        engine.add(Sequence(name, ids, 200, None, ignore_eos=True, priority=priority))

    def running() -> list[str]:
        return [row.sequence.request_id for batch in engine._batches for row in batch.rows]

    engine.step()
    assert running() == ["a", "d", "f", "b"]
    assert [values.request_id for values in engine._waiting] == ["c", "e"]
    room.limit_bytes = room.needed_bytes([BatchSize(2, 256)])
    engine.make_room()
    assert running() == ["a", "d"]
    assert [values.request_id for values in engine._waiting] == ["f", "b", "c", "e"]
    need = engine.need
    assert need.used_bytes == need.least_bytes * 2 == room.limit_bytes
    assert need.wanted_bytes > room.limit_bytes
    assert engine.short


@pytest.mark.parametrize("name", ["full attention", "chunked attention"])
def test_a_new_sequence_lacks_no_free_memory(
    name: str, models: Callable[[str], LoadedModel]
) -> None:
    """The engine thread lets those that are short wait, and for nobody else comes an answer."""
    model = models(name)
    room = CacheRoom(measure(model.model), limit_bytes=0)
    engine: Engine = SequentialEngine(model.model, model.eos_token_ids, room)
    if name == "full attention":
        engine = BatchedEngine(model.model, model.eos_token_ids, 2, room)
    for sequence in _sequences(model, PROMPTS[:1]):
        engine.add(sequence)
    assert engine.short
    room.limit_bytes = engine.need.least_bytes - 1
    assert engine.short
    room.limit_bytes += 1
    assert not engine.short
    while not engine.step():
        pass
    assert engine.active


def test_a_sequence_that_waits_for_memory_holds_up_no_other(
    models: Callable[[str], LoadedModel],
) -> None:
    model = models("full attention")
    room = _room(model, 1, 256)
    engine = BatchedEngine(model.model, model.eos_token_ids, 4, room)
    large, small = _sequences(model, ["A ship with seven holds. " * 40, "A ship"])
    engine.add(large)
    engine.add(small)
    made = []
    for _ in range(100):
        made += [token.request_id for token in engine.step()]
    assert made == [small.request_id] * 24
    assert engine.waiting == 1
    need = engine.need
    assert need.least_bytes > (room.limit_bytes or 0), "it still says what it needs"
    room.limit_bytes = need.least_bytes
    assert set(_run(engine)) == {large.request_id}


def test_hopeless_sequences_are_removed(
    models: Callable[[str], LoadedModel],
) -> None:
    model = models("full attention")
    room = _room(model, 1, 256)
    tokens = model.tokenizer.encode("A ship with seven holds. " * 400)
    long = Sequence("long", tokens[:600], 24, None, ignore_eos=True)
    maybe = Sequence("maybe", tokens[:500], 300, None, ignore_eos=True)
    for engine in (
        BatchedEngine(model.model, model.eos_token_ids, 4, room),
        SequentialEngine(model.model, model.eos_token_ids, room),
    ):
        for values in (long, maybe):
            engine.add(values)
        room.most_bytes = None
        assert engine.remove_hopeless() == [], "nobody knows"
        room.most_bytes = room.needed_bytes([BatchSize(1, 1024)])
        assert engine.remove_hopeless() == []
        room.most_bytes = room.needed_bytes([BatchSize(1, 512)])
        assert room.longest_tokens(4000) == 512
        assert engine.remove_hopeless() == [long]
        assert engine.waiting == 1
    assert room.longest_tokens(100) == 100
    room.most_bytes = 0
    assert room.longest_tokens(4000) == 256, "what it holds already it can have"


@pytest.mark.parametrize("name", ["full attention", "chunked attention"])
def test_the_prompt_that_is_computed_has_a_number(
    name: str, models: Callable[[str], LoadedModel]
) -> None:
    model = models(name)
    room = CacheRoom(measure(model.model))
    tokens = model.tokenizer.encode("A ship with seven holds. " * 400)[:600]
    seen: list[int] = []
    engine: Engine
    if name == "full attention":
        engine = BatchedEngine(model.model, model.eos_token_ids, 4, room)
    else:
        engine = SequentialEngine(model.model, model.eos_token_ids, room)
    engine.add(Sequence("a", tokens, 3, None, ignore_eos=True))
    for _ in range(3):
        engine.step()
        seen.append(engine.need.prompt)
    room.limit_bytes = 1
    engine.make_room()
    assert set(seen[:2]) == {1}
    assert (engine.active, engine.waiting, engine.need.prompt) == (0, 1, 0)
    room.limit_bytes = None
    seen.clear()
    for _ in range(40):
        engine.step()
        seen.append(engine.need.prompt)
    assert 2 in seen, "computed anew, it is another"
    assert seen[-1] == 0


@pytest.mark.slow
def test_a_long_row_does_not_make_short_ones_long(models: Callable[[str], LoadedModel]) -> None:
    model = models("full attention")
    room = CacheRoom(measure(model.model))
    tokens = model.tokenizer.encode("A ship with seven holds. " * 300)[:1100]
    # A joint batch is five times this; one of its own for the long row fits.
    room.limit_bytes = room.needed_bytes([BatchSize(1, 1536), BatchSize(6, 256)])
    engine = BatchedEngine(model.model, model.eos_token_ids, 8, room)
    asked = [Sequence("long", tokens, 20, None, ignore_eos=True)]
    asked += [Sequence(str(index), tokens[:30], 20, None, ignore_eos=True) for index in range(6)]
    alone: dict[str, list[int]] = {}
    for sequence in asked[:2]:
        single = BatchedEngine(model.model, model.eos_token_ids, 8, UNBOUNDED)
        single.add(sequence)
        alone |= _run(single)
    for sequence in asked:
        engine.add(sequence)
    engine.step()
    assert sorted(len(batch) for batch in engine._batches) == [1, 6]
    assert engine.need.wanted_bytes == engine.need.used_bytes, "none of them becomes much longer"
    made = _run(engine)
    assert {made[values.request_id] == alone["0"] for values in asked[1:]} == {True}
    assert made["long"] == alone["long"]


def test_batches_share_what_a_stream_may_wait(
    models: Callable[[str], LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models("full attention")
    room = CacheRoom(measure(model.model))
    tokens = model.tokenizer.encode("A ship with seven holds. " * 200)[:700]
    room.limit_bytes = room.needed_bytes([BatchSize(1, 1024), BatchSize(3, 512)])
    # So long that no chunk takes a share of it that could be told.
    engine = BatchedEngine(model.model, model.eos_token_ids, 8, room, stall_s=1e6)
    shares: list[tuple[int, float]] = []
    choose = engine._pace.chunk

    def chunk(rows: int, decoding: bool, context: int, share_s: float, left: float) -> int:
        shares.append((sum(bool(batch.prefilling) for batch in engine._batches), share_s))
        return min(64, choose(rows, decoding, context, share_s, left))

    monkeypatch.setattr(engine._pace, "chunk", chunk)
    engine.add(Sequence("stream", tokens[:30], 60, None, ignore_eos=True))
    engine.step()
    engine.add(Sequence("long", tokens, 20, None, ignore_eos=True))
    engine.step()
    engine.add(Sequence("short", tokens[:300], 20, None, ignore_eos=True))
    shares.clear()
    assert len(_run(engine)) == 3
    assert {batches for batches, _ in shares} == {1, 2}
    whole_s = max(share_s for batches, share_s in shares if batches == 1)
    assert whole_s <= 1e6
    assert all(abs(share_s - whole_s / batches) < 1e3 for batches, share_s in shares)


def test_a_sequence_that_comes_while_prompts_end_joins_after_them(
    models: Callable[[str], LoadedModel],
) -> None:
    """Each group that joins costs a copy of the batch; a long prompt keeps nobody out."""
    model = models("full attention")
    engine = BatchedEngine(model.model, model.eos_token_ids, 16, UNBOUNDED)
    tokens = model.tokenizer.encode("A ship with seven holds. " * 400)[:600]

    def add(*lengths: int) -> None:
        for length in lengths:
            name = str(engine.active + engine.waiting)
            engine.add(Sequence(name, tokens[:length], 20, None, ignore_eos=True))

    add(20, 20, 20)
    engine.step()
    add(20, 20)
    engine.step()
    assert (engine.active, engine.waiting) == (3, 2)
    assert len(engine.step()) == 3
    assert (engine.active, engine.waiting) == (5, 0)
    add(600)
    engine.step()
    engine.step()
    add(20, 20)
    engine.step()
    assert (engine.active, engine.waiting) == (8, 0)
    assert len(_run(engine)) == 8


def test_prompts_that_one_chunk_takes_are_computed_together(
    models: Callable[[str], LoadedModel],
) -> None:
    model = models("full attention")
    engine = BatchedEngine(model.model, model.eos_token_ids, 32, UNBOUNDED, stall_s=1e6)
    tokens = model.tokenizer.encode("A ship with seven holds. " * 4)
    asked = [
        Sequence(str(index), tokens[index % 8 :][:14], 6, None, ignore_eos=True)
        for index in range(24)
    ]
    # A longer prompt shows the speed.
    engine.add(Sequence("long", tokens * 4, 6, None, ignore_eos=True))
    engine.add(asked[0])
    alone = _run(engine)
    for sequence in asked:
        engine.add(sequence)
    engine.step()
    # 16 prompts of up to 16 tokens are a whole chunk on a processor.
    assert (engine.active, engine.waiting) == (16, 8)
    made = _run(engine)
    assert len(made) == 24
    assert {tuple(made[sequence.request_id]) for sequence in asked[::8]} == {tuple(alone["0"])}


def test_a_sequence_that_long_prompts_hold_up_is_overtaken_without_loss(
    models: Callable[[str], LoadedModel],
) -> None:
    model = models("full attention")
    room = CacheRoom(measure(model.model))
    tokens = model.tokenizer.encode("A ship with seven holds. " * 400)[:1500]
    room.limit_bytes = room.needed_bytes([BatchSize(9, 1536), BatchSize(2, 256)])
    engine = BatchedEngine(model.model, model.eos_token_ids, 16, room)
    for index in range(9):
        engine.add(Sequence(f"long {index}", tokens, 20, None, ignore_eos=True))
    for index in range(4):
        engine.add(Sequence(f"short {index}", tokens[:20], 20, None, ignore_eos=True))
    engine.step()
    # Long ones are computed one after another, and their places are left to them.
    assert [len(batch) for batch in engine._batches] == [2, 1]
    held = [values.request_id for values in engine._waiting]
    assert held == [*(f"long {index}" for index in range(1, 9)), "short 2", "short 3"]


def test_how_many_prompts_are_computed_at_a_time(models: Callable[[str], LoadedModel]) -> None:
    """As many as fill chunks; the first to come ends first, and long ones hold up no short one."""
    model = models("full attention")
    tokens = model.tokenizer.encode("A ship with seven holds. " * 400)[:1500]

    def begun(*lengths: int) -> list[int]:
        engine = BatchedEngine(model.model, model.eos_token_ids, 16, UNBOUNDED)
        for index, length in enumerate(lengths):
            engine.add(Sequence(str(index), tokens[:length], 20, None, ignore_eos=True))
        engine.step()
        return [len(row.sequence.token_ids) for batch in engine._batches for row in batch.rows]

    assert begun(*[30] * 10) == [30] * 8
    assert begun(*[200] * 5) == [200] * 3
    assert begun(600, 600, 600) == [600]
    assert begun(600, 1200, 600) == [600]
    assert begun(1300, 600, 600, 30) == [1300, 600, 30]


def test_the_room_of_a_model(models: Callable[[str], LoadedModel]) -> None:
    config = json.loads((shapes.DEMO / "config.json").read_text())
    layers = config["num_hidden_layers"]
    token_bytes = layers * config["num_key_value_heads"] * config["head_dim"] * 2 * 4
    shape = measure(models("full attention").model)
    assert shape[:3] == (token_bytes, 0, peak_share(layers))
    room = CacheRoom(shape, 10_000, fixed_bytes=1000, working_bytes=100, working_token_bytes=1)
    assert room.needed_bytes([]) == 1100
    one = shape.batch_bytes(1, 256)
    assert room.needed_bytes([BatchSize(1, 200)]) == 1100 + 256 + int(one * shape.peak)
    two = room.needed_bytes([BatchSize(2, 200), BatchSize(1, 10)])
    assert two == 1100 + 256 + 3 * one + int(2 * one * (shape.peak - 1))
    assert not room.holds([BatchSize(1, 1)])
    windowed = measure(models("sliding window").model)
    assert windowed.row_bytes == 2 * 32 * 2 * 16 * 2 * 4
    states = measure(models("state space").model)
    assert states.token_bytes == 0
    assert states.row_bytes > 0


def test_more_sequences_than_the_batch_takes(models: Callable[[str], LoadedModel]) -> None:
    model = models("full attention")
    engine = BatchedEngine(model.model, model.eos_token_ids, 2, UNBOUNDED)
    for sequence in _sequences(model, PROMPTS):
        engine.add(sequence)
    assert {len(values) for values in _run(engine).values()} == {24}


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
    engine = SequentialEngine(model.model, model.eos_token_ids, UNBOUNDED)
    for sequence in _sequences(model, PROMPTS):
        engine.add(sequence)
    engine.remove(["2"])
    tokens = _run(engine)
    assert {key: len(token) for key, token in tokens.items()} == {"0": 24, "1": 24, "3": 24}


def test_a_prompt_is_computed_chunk_by_chunk(models: Callable[[str], LoadedModel]) -> None:
    """Between two of them who was cancelled leaves, and memory that is called back is free."""
    model = models("chunked attention")
    (long,) = _sequences(model, PROMPTS[3:])
    alone = SequentialEngine(model.model, model.eos_token_ids, UNBOUNDED)
    alone.add(long)
    expected = _run(alone)
    room = _room(model, 1, 512)
    engine = SequentialEngine(model.model, model.eos_token_ids, room)
    engine.add(long)
    assert engine.step() == []
    assert (engine.active, engine.waiting) == (1, 0)
    limit_bytes, room.limit_bytes = room.limit_bytes, 0
    engine.make_room()
    assert (engine.active, engine.waiting) == (0, 1)
    assert engine.step() == []
    room.limit_bytes = limit_bytes
    assert _run(engine) == expected
    engine.add(long)
    assert engine.step() == []
    engine.remove([long.request_id])
    assert engine.step() == []
    assert engine.active + engine.waiting == 0


@pytest.mark.slow
def test_short_prompts_are_not_padded_to_a_long_one_that_is_far_on(
    models: Callable[[str], LoadedModel],
) -> None:
    model = models("full attention")
    tokens = model.tokenizer.encode("A ship with seven holds. " * 800)[:4000]
    engine = BatchedEngine(model.model, model.eos_token_ids, 8, UNBOUNDED, stall_s=0.01)
    engine.add(Sequence("stream", tokens[:30], 200, None, ignore_eos=True))
    engine.add(Sequence("long", tokens, 2, None, ignore_eos=True))
    while not any(row.seen_tokens > 2000 for batch in engine._batches for row in batch.prefilling):
        engine.step()
    for name in "abc":
        engine.add(Sequence(name, tokens[:40], 4, None, ignore_eos=True))
    engine.step()
    with_long = next(
        row_batch
        for row_batch in engine._batches
        if "long" in [r.sequence.request_id for r in row_batch.rows]
    )
    assert not {"a", "b", "c"} & {row.sequence.request_id for row in with_long.rows}
    engine.remove(["long", "stream"])
    made = _run(engine)
    assert made["a"] == made["b"] == made["c"]


@pytest.mark.slow
def test_rows_of_unlike_length_share_each_step(models: Callable[[str], LoadedModel]) -> None:
    """Short prompts that came while a long one was computed are in its batch once it decodes."""
    model = models("full attention")
    tokens = model.tokenizer.encode("A ship with seven holds. " * 800)[:2000]
    # A few tokens of padding cost as much as a group.
    room = CacheRoom(CacheSizes(1_000_000, 0, 1.0))
    asked = [Sequence("long", tokens, 24, RowSampling(1), ignore_eos=True)]
    for name, length in (("a", 40), ("b", 45), ("c", 300)):
        asked.append(Sequence(name, tokens[:length], 90, RowSampling(length), ignore_eos=True))
    expected: dict[str, list[int]] = {}
    for sequence in asked:
        alone = BatchedEngine(model.model, model.eos_token_ids, 8, UNBOUNDED)
        alone.add(sequence)
        expected |= _run(alone)
    engine = BatchedEngine(model.model, model.eos_token_ids, 8, room, stall_s=1e6)
    engine.add(asked[0])
    while not any(
        row.seen_tokens > 1200 for row_batch in engine._batches for row in row_batch.prefilling
    ):
        engine.step()
    for sequence in asked[1:]:
        engine.add(sequence)
    made: dict[str, list[int]] = {values.request_id: [] for values in asked}
    most_batches = together = 0
    while engine.active + engine.waiting:
        took = engine.step()
        for token in took:
            made[token.request_id].append(token.token_id)
        most_batches = max(most_batches, len(engine._batches))
        if len(made["long"]) in range(2, 24):
            assert {token.request_id for token in took} == set(made)
            (batch,) = engine._batches
            assert sorted(size.rows for size in batch.sizes()) == [1, 1, 2]
            together += 1
    assert made == expected
    assert most_batches > 1
    assert together > 10
