"""A prompt that is partly known gives the same text, whatever the model's caches are."""

from __future__ import annotations

import functools
import gc
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path as Folder
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from protocol.prompt_store.store import PromptStore
from protocol.requests import Sampling, SamplingDefaults
from tests.support import shapes
from tests.support.gateway import eventually
from tests.support.stepping import step
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import BatchSize, CacheRoom, CacheSizes, measure
from worker.engines.sequence import Engine, Sequence, Token
from worker.engines.sequential import SequentialEngine
from worker.load.loading import LoadedModel, load
from worker.prompt_cache import blocks
from worker.prompt_cache.blocks import Cutter, Span
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.disk import Disk
from worker.prompt_cache.path import Paths
from worker.sampling.adjustments import make_adjustments
from worker.sampling.settings import make_row_sampling

# The lengths of chunks decide which snapshots there are.
pytestmark = pytest.mark.usefixtures("steady_pace")

SHAPES: dict[str, Callable[[Folder], Folder]] = {
    "full": shapes.full_attention,
    "sliding window": shapes.sliding_window,
    "recurrent": shapes.state_space,
    "hybrid": shapes.hybrid,
    "linear attention": shapes.linear_attention,
    "chunked": shapes.chunked_attention,
}
GREEDY = Sampling(seed=1, temperature=0.0)
SAMPLED = Sampling(seed=7, temperature=1.1, top_p=0.95, repetition_penalty=1.4)


class Bench:
    """A model with one kind of caches, and engines on it."""

    def __init__(self, loaded: LoadedModel, *, batched: bool, kv_bits: int | None = None) -> None:
        self.eos_token_ids = loaded.eos_token_ids
        self.vocabulary = loaded.vocabulary
        self.batched = batched
        self.caches = Caches(loaded.model, kv_bits=kv_bits)
        self.model = self.caches.model
        self.cutter = Cutter(self.caches.run, self.caches.make)
        self.paths = Paths(b"", None, needs_snapshots=self.cutter.needs_snapshots)

    def engine(self, cache: PromptCache | None = None, room: CacheRoom | None = None) -> Engine:
        room = room or CacheRoom(CacheSizes(0, 0, 1.0))
        if self.batched:
            return BatchedEngine(self.model, self.eos_token_ids, 8, room, prompt_cache=cache)
        return SequentialEngine(self.model, self.eos_token_ids, room, self.caches, cache)

    def plain_engine(self) -> Engine:
        """Without a prompt cache, and where it can be another one than `engine`."""
        if self.caches.can_be_merged:
            return BatchedEngine(
                self.model, self.eos_token_ids, 8, CacheRoom(CacheSizes(0, 0, 1.0))
            )
        return self.engine()

    def sequence(
        self,
        name: str,
        token_ids: list[int],
        sampling: Sampling = GREEDY,
        boundaries: list[int] | None = None,
        max_tokens: int = 10,
    ) -> Sequence:
        return Sequence(
            name,
            token_ids,
            max_tokens,
            make_row_sampling(sampling, SamplingDefaults(), self.vocabulary),
            ignore_eos=True,
            adjustments=make_adjustments(sampling, len(token_ids), 4096, ()),
            path=self.paths.find(token_ids, "", boundaries or [len(token_ids)]),
        )

    def tokens(self, count: int, seed: int = 0) -> list[int]:
        chance = random.Random(seed)
        return [chance.randrange(3, self.vocabulary) for _ in range(count)]


@functools.cache
def _loaded(name: str, folder: Folder) -> LoadedModel:
    return load(str(SHAPES[name](folder / name)), lambda _done, _total: None, lambda: False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(
    params=[
        ("full", True, None),
        ("sliding window", True, None),
        pytest.param(("recurrent", True, None), marks=pytest.mark.slow),
        ("hybrid", True, None),
        ("linear attention", True, None),
        ("full", False, None),
        pytest.param(("sliding window", False, None), marks=pytest.mark.slow),
        pytest.param(("recurrent", False, None), marks=pytest.mark.slow),
        pytest.param(("hybrid", False, None), marks=pytest.mark.slow),
        ("chunked", False, None),
        ("full", True, 8),
        pytest.param(("full", False, 8), marks=pytest.mark.slow),
    ],
    ids=lambda item: f"{item[0]}-{'batched' if item[1] else 'sequential'}-{item[2]}",
)
def bench(request: pytest.FixtureRequest, folder: Folder) -> Bench:
    name, batched, kv_bits = request.param
    return Bench(_loaded(name, folder), batched=batched, kv_bits=kv_bits)


def _run(engine: Engine, *sequences: Sequence) -> dict[str, list[Token]]:
    for sequence in sequences:
        engine.add(sequence)
    tokens: dict[str, list[Token]] = {}
    for _ in range(1000):
        if not engine.active + engine.waiting:
            return tokens
        for token in step(engine):
            tokens.setdefault(token.request_id, []).append(token)
    raise AssertionError("it doesn't end")


def _ids(tokens: list[Token]) -> list[int]:
    return [token.token_id for token in tokens]


def test_the_next_turn(bench: Bench) -> None:
    """It begins with all of the last one, and goes on as if that had been computed anew."""
    cache = PromptCache(bench.cutter, None)

    def answer(token_ids: list[int], cache: PromptCache | None, count: int) -> list[Token]:
        sequence = bench.sequence("r", token_ids, SAMPLED, [70, len(token_ids)], count)
        engine = bench.plain_engine() if cache is None else bench.engine(cache)
        return _run(engine, sequence)["r"]

    prompt = bench.tokens(110)
    first = answer(prompt, cache, 20)
    assert _ids(first) == _ids(answer(prompt, None, 20))
    turn = prompt + _ids(first) + bench.tokens(10, seed=1)
    expected = _ids(answer(turn, None, 6))
    # The answer has been seen too; of what can't be cut there are the boundaries alone, until it
    # has been computed once.
    for known in (64 if bench.cutter.needs_snapshots else 128, 128):
        second = answer(turn, cache, 6)
        assert {token.cached_tokens for token in second} == {known}
        assert _ids(second) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "bench",
    # Of other caches nothing is kept when an answer ends.
    [("full", True, None), ("full", False, None), ("full", True, 4)],
    indirect=True,
    ids=["batched", "sequential", "quantized"],
)
def test_rows_that_end_together(bench: Bench) -> None:
    """What each has is kept as its own."""
    cache = PromptCache(bench.cutter, None)
    prompts = [bench.tokens(100, seed=seed) for seed in range(3)]
    prompts.append(prompts[2])
    first = _run(
        bench.engine(cache),
        *(
            bench.sequence(str(index), values, max_tokens=90)
            for index, values in enumerate(prompts)
        ),
    )
    for index, prompt in enumerate(prompts):
        answer = _ids(first[str(index)])
        alone = _run(bench.plain_engine(), bench.sequence("r", prompt, max_tokens=90))["r"]
        assert answer == _ids(alone)
        turn = prompt + answer + bench.tokens(10, seed=index)
        second = _run(bench.engine(cache), bench.sequence("r", turn, max_tokens=6))["r"]
        assert second[0].cached_tokens == 128
        anew = _run(bench.plain_engine(), bench.sequence("r", turn, max_tokens=6))["r"]
        assert _ids(second) == _ids(anew)


@pytest.mark.parametrize("most_blocks", [1, 3, 100])
def test_rows_are_cut_together_as_alone(
    folder: Folder, most_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit, whatever their padding, and so many at a time."""
    bench = Bench(_loaded("full", folder), batched=True)
    most_bytes = most_blocks * bench.cutter.block_bytes
    monkeypatch.setattr(blocks, "_MOST_TOGETHER_BYTES", most_bytes)
    rows = []
    for length in (70, 200, 130):
        caches = bench.caches.make()
        mx.eval(bench.model(mx.array([bench.tokens(length, seed=length)]), cache=caches))
        rows.append(caches)
    batch = [KVCache.merge(list(layer)) for layer in zip(*rows, strict=True)]
    spans = [Span(batch, 0, 0, 1), Span(batch, 1, 1, 3), Span(batch, 2, 2, 2), Span(batch, 2, 0, 2)]
    together = bench.cutter.cut_all(spans)
    assert [len(values) for values in together] == [1, 2, 0, 2]
    for span, cut in zip(spans, together, strict=True):
        alone = bench.cutter.cut(rows[span.row], 0, span.first, span.last) if cut else []
        for one, other in zip(cut, alone, strict=True):
            assert [array.shape for array in one.arrays] == [array.shape for array in other.arrays]
            for left, right in zip(one.arrays, other.arrays, strict=True):
                assert mx.array_equal(left, right)


@pytest.mark.slow
def test_branches_do_not_change_each_other(bench: Bench) -> None:
    """Conversations that share beginnings, at once and one after the other: none of them changes
    what another one left.
    """
    chance = random.Random(3)
    cache = PromptCache(bench.cutter, None)
    turns = [bench.tokens(70)]
    while len(turns) < 4:
        begun = chance.choice(turns)
        cut = chance.randrange(65, len(begun))
        turns.append(begun[:cut] + bench.tokens(chance.randrange(20, 100), seed=len(turns)))
    sequences = [
        # Some are kept up to their end, some only up to where all are alike.
        bench.sequence(str(index), turn, boundaries=[64, len(turn)][: index % 2 + 1], max_tokens=4)
        for index, turn in enumerate(turns)
    ]
    alone = {}
    for sequence in sequences:
        alone[sequence.request_id] = _ids(_run(bench.plain_engine(), sequence)[sequence.request_id])
    for _ in range(2):
        chance.shuffle(sequences)
        together = _run(bench.engine(cache), *sequences)
        assert {name: _ids(values) for name, values in together.items()} == alone
    assert {values[0].cached_tokens > 0 for values in together.values()} == {True}


def test_memory_that_is_called_back(bench: Bench) -> None:
    """What is kept goes first; a row that leaves goes on with what it had kept."""
    room = CacheRoom(measure(bench.caches.run, bench.caches.make))
    room.limit_bytes = room.needed_bytes([BatchSize(1, 512)]) * 4
    cache = PromptCache(bench.cutter, None)
    engine = bench.engine(cache, room)
    sequence = bench.sequence("r", bench.tokens(150), boundaries=[150], max_tokens=10)
    expected = _ids(_run(bench.engine(), sequence)["r"])
    engine.add(sequence)
    made: list[Token] = []
    while len(made) < 5:
        made += step(engine)
    need = engine.need
    assert need.cache_bytes == cache.bytes_ > 0
    assert need.cache_wanted_bytes >= need.cache_bytes
    limit_bytes = room.limit_bytes
    room.limit_bytes = room.needed_bytes([]) + cache.bytes_
    engine.make_room()
    assert (engine.active, engine.waiting) == (0, 1)
    assert cache.bytes_ > 0
    room.limit_bytes = limit_bytes
    rest = _run(engine)["r"]
    assert rest[0].cached_tokens == 128
    assert _ids(made) + _ids(rest) == expected
    room.limit_bytes = 0
    engine.make_room()
    assert cache.bytes_ == 0
    assert engine.need.cache_wanted_bytes > 0
    assert engine.clear_prompts() == 0


@pytest.mark.slow
def test_a_prompt_that_is_cancelled_again_and_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt goes on where the last one was cancelled."""
    for module in ("batched_engine", "sequential"):
        monkeypatch.setattr(f"worker.engines.{module}.largest_chunk", lambda: 64)
    sequence = bench.sequence("r", bench.tokens(700), boundaries=[700])
    expected = _ids(_run(bench.plain_engine(), sequence)["r"])
    engine = bench.engine(PromptCache(bench.cutter, None))
    tokens: list[Token] = []
    cancelled = 0
    while not tokens:
        engine.add(sequence)
        # The shortest chunk has a quarter of a block.
        for _ in range(4):
            tokens += step(engine)
        if not tokens:
            engine.remove(["r"])
            cancelled += 1
            assert cancelled <= 700 // 64
    tokens += _run(engine)["r"]
    assert cancelled >= 2
    assert tokens[0].cached_tokens >= 512
    assert _ids(tokens) == expected


def test_snapshots_of_a_long_message_survive_a_killed_worker(
    folder: Folder, tmp_path: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state in its middle is on disk, however far its end was."""
    monkeypatch.setattr("worker.engines.batched_engine.largest_chunk", lambda: 64)
    bench = Bench(_loaded("hybrid", folder), batched=True)
    store = PromptStore(tmp_path, 1 << 30, 1 << 30)
    bench.paths = Paths(b"", store, needs_snapshots=True)
    prompt = bench.tokens(3000)
    cache = PromptCache(bench.cutter, Disk(store, "m", b"", lambda: None))
    engine = bench.engine(cache)
    engine.add(bench.sequence("r", prompt))
    path = bench.paths.find(prompt, "")
    while cache.depth(path, 3000) < 40:
        assert step(engine) == []
    cache.close(at_most_s=60)
    path = bench.paths.find(prompt, "")
    assert path.stored >= 40
    assert 32 <= path.stored_snapshots[0] < path.stored


@pytest.mark.parametrize(
    "bench",
    [("linear attention", True, None), ("linear attention", False, None)],
    indirect=True,
    ids=["batched", "sequential"],
)
def test_the_snapshots_that_are_missed_least_go_first(bench: Bench) -> None:
    """Memory holds all blocks of some prompts and some snapshots: each prompt has its last one."""
    prompts = [bench.tokens(450, seed=index) for index in range(4)]
    room = CacheRoom(measure(bench.caches.run, bench.caches.make))
    # A sequence that joins counts twice.
    room.limit_bytes = room.needed_bytes(2 * [BatchSize(1, 512)])
    room.limit_bytes += 4 * 7 * bench.cutter.block_bytes + 6 * room.shape.row_bytes
    cache = PromptCache(bench.cutter, None)
    engine = bench.engine(cache, room)

    def cached_tokens() -> list[int]:
        known = []
        for prompt in prompts:
            sequence = bench.sequence("r", prompt, boundaries=[64, 192, 320, 450], max_tokens=1)
            known.append(_run(engine, sequence)["r"][0].cached_tokens)
        return known

    assert cached_tokens() == [0] * 4
    all_bytes = 4 * (7 * bench.cutter.block_bytes + 4 * room.shape.row_bytes)
    assert cache.bytes_ < all_bytes
    assert cached_tokens() == [448] * 4


def test_another_worker_reads_stored_blocks(bench: Bench, tmp_path: Folder) -> None:
    """Another worker reads it from disk, and waits for that."""
    store = PromptStore(tmp_path, 1 << 30, 1 << 30)
    bench.paths = Paths(b"", store, needs_snapshots=bench.cutter.needs_snapshots)

    def answer(cache: PromptCache | None) -> tuple[list[Token], bool]:
        engine = bench.plain_engine() if cache is None else bench.engine(cache)
        engine.add(bench.sequence("r", bench.tokens(80), boundaries=[80], max_tokens=3))
        tokens = step(engine)
        waited = engine.fetching
        assert not (waited and (tokens or engine.short or engine.active))
        deadline = time.monotonic() + 20
        while engine.fetching and time.monotonic() < deadline:
            tokens += step(engine)
            time.sleep(0.001)
        return tokens + _run(engine).get("r", []), waited

    cache = PromptCache(bench.cutter, Disk(store, "m", b"", lambda: None))
    first, waited = answer(cache)
    assert not waited
    cache.close(at_most_s=20)
    cache = PromptCache(bench.cutter, Disk(store, "m", b"", lambda: None))
    again, waited = answer(cache)
    cache.close(at_most_s=20)
    assert waited
    assert {token.cached_tokens for token in again} == {64}
    assert _ids(again) == _ids(first) == _ids(answer(None)[0])


@pytest.mark.parametrize("closes", [False, True])
def test_a_prompt_that_is_computed_faster_than_the_disk_writes(
    bench: Bench, tmp_path: Folder, monkeypatch: pytest.MonkeyPatch, *, closes: bool
) -> None:
    """All of it is stored, though little of it may wait at a time."""
    monkeypatch.setattr("worker.prompt_cache.disk._MOST_PENDING", 2)
    store = PromptStore(tmp_path, 1 << 30, 1 << 30)
    bench.paths = Paths(b"", store, needs_snapshots=bench.cutter.needs_snapshots)
    may, write = threading.Event(), store.write
    monkeypatch.setattr(store, "write", lambda *of: may.wait(60) and write(*of))
    woken = threading.Event()
    cache = PromptCache(bench.cutter, Disk(store, "m", b"", woken.set))
    engine = bench.engine(cache)
    prompt = bench.tokens(700)
    expected = _run(engine, bench.sequence("r", prompt, boundaries=[700], max_tokens=1))
    assert bench.paths.find(prompt, "", [700]).stored == 0
    may.set()
    if not closes:
        assert woken.wait(60)
        assert step(engine) == []
        eventually(lambda: bench.paths.find(prompt, "", [700]).stored >= 10)
    cache.close(at_most_s=60)
    assert bench.paths.find(prompt, "", [700]).stored >= 10
    assert expected["r"][0].cached_tokens == 0


def test_blocks_read_together_are_collected_in_small_parts(
    bench: Bench, tmp_path: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it, though the reading has long ended."""
    monkeypatch.setattr("worker.prompt_cache.cache._MOST_ARRIVALS_BYTES", 1)
    monkeypatch.setattr("worker.prompt_cache.cache._LEAST_LATE_S", 300.0)
    store = PromptStore(tmp_path, 1 << 30, 1 << 30)
    bench.paths = Paths(b"", store, needs_snapshots=bench.cutter.needs_snapshots)

    def cached_tokens() -> int:
        cache = PromptCache(bench.cutter, Disk(store, "m", b"", lambda: None))
        engine = bench.engine(cache)
        engine.add(bench.sequence("r", bench.tokens(700), boundaries=[700], max_tokens=1))
        tokens = step(engine)
        deadline = time.monotonic() + 60
        while engine.fetching and time.monotonic() < deadline:
            time.sleep(0.01)
            tokens += step(engine)
        tokens += _run(engine).get("r", [])
        cache.close(at_most_s=60)
        return tokens[0].cached_tokens

    assert [cached_tokens() for _ in range(2)] == [0, 640]


FULL = pytest.mark.parametrize("bench", [("full", True, None)], indirect=True)


def _run_to_end(engine: Engine, prompts: list[Sequence]) -> dict[str, list[Token]]:
    for prompt in prompts:
        engine.add(prompt)
    tokens: dict[str, list[Token]] = {}
    deadline = time.monotonic() + 60
    while engine.active + engine.waiting and time.monotonic() < deadline:
        for token in step(engine):
            tokens.setdefault(token.request_id, []).append(token)
        if engine.fetching and not engine.active:
            time.sleep(0.001)
    return tokens


@FULL
def test_many_that_were_stored(bench: Bench, tmp_path: Folder) -> None:
    """More than are read at a time: none is computed because others are read before it."""
    store = PromptStore(tmp_path, 1 << 30, 1 << 30)
    bench.paths = Paths(b"", store, needs_snapshots=False)

    def cached_tokens() -> list[int]:
        cache = PromptCache(bench.cutter, Disk(store, "m", b"", lambda: None))
        prompts = [bench.sequence(str(index), bench.tokens(80, seed=index)) for index in range(20)]
        found = _run_to_end(bench.engine(cache), prompts)
        cache.close(at_most_s=20)
        return [tokens[0].cached_tokens for tokens in found.values()]

    assert cached_tokens() == [0] * 20
    assert cached_tokens() == [64] * 20


@FULL
def test_a_disk_that_hangs(bench: Bench, tmp_path: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for once, and asked again when it has come back."""
    store = PromptStore(tmp_path, 1 << 30, 1 << 30)
    bench.paths = Paths(b"", store, needs_snapshots=False)
    prompts = [bench.tokens(80, seed=index) for index in range(12)]
    cache = PromptCache(bench.cutter, Disk(store, "m", b"", lambda: None))
    sequences = [bench.sequence(str(index), prompt) for index, prompt in enumerate(prompts)]
    expected = _run_to_end(bench.engine(cache), sequences)
    cache.close(at_most_s=20)

    hangs, read = threading.Event(), store.read

    def hanging(key: bytes) -> bytes | None:
        hangs.wait(60)
        return read(key)

    monkeypatch.setattr(store, "read", hanging)
    monkeypatch.setattr("worker.prompt_cache.cache._LEAST_LATE_S", 0.2)
    cache = PromptCache(bench.cutter, Disk(store, "m", b"", lambda: None))
    engine = bench.engine(cache)
    sequences = [bench.sequence(str(index), values) for index, values in enumerate(prompts[:11])]
    found = _run_to_end(engine, sequences)
    assert len(found) == 11
    for name, tokens in found.items():
        assert _ids(tokens) == _ids(expected[name])
        assert tokens[0].cached_tokens == 0
    last = bench.sequence("11", prompts[11])
    assert last.path is not None
    assert not cache.is_worth_fetching(last.path, 80, 1 << 40)
    hangs.set()
    eventually(lambda: cache.is_worth_fetching(last.path, 80, 1 << 40))
    found = _run_to_end(engine, [last])
    assert found["11"][0].cached_tokens == 64
    cache.close(at_most_s=20)


def test_caches_of_an_unknown_kind_are_not_cached() -> None:
    """As an architecture's own, whose state can be read but not set."""

    class Own:
        def empty(self) -> bool:
            return False

    def model(_tokens: mx.array, cache: list[Any]) -> mx.array:
        for item in cache:
            if isinstance(item, KVCache):
                item.update_and_fetch(mx.zeros((1, 1, 2, 8)), mx.zeros((1, 1, 2, 8)))
        return mx.zeros((1,))

    assert Cutter(model, lambda: [KVCache()]).can_restore
    assert not Cutter(model, lambda: [KVCache(), Own()]).can_restore


def test_a_snapshot_stays_what_it_was(folder: Folder) -> None:
    """A model writes into the caches that it is given."""
    bench = Bench(_loaded("sliding window", folder), batched=False)
    caches = bench.caches.make()
    for token in bench.tokens(64):
        bench.caches.run(mx.array([[token]]), caches)
    block, snapshot = bench.cutter.cut(caches, 0, 0, 1), bench.cutter.snapshot(caches, 0)

    def next_logits() -> list[object]:
        joined = bench.cutter.join(block, snapshot)
        return [bench.caches.run(mx.array([[number]]), joined)[0].tolist() for number in (5, 6)]

    assert next_logits() == next_logits()


def test_cached_blocks_stay_with_a_loan(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is lent just what it says that it wants, a step later; prompts are large beside
    what it asks for in advance.
    """
    monkeypatch.setattr("worker.engines.keeper._MORE_BYTES", 0)
    monkeypatch.setattr("worker.engines.keeper._STEP_BYTES", 1)
    monkeypatch.setattr("worker.engines.keeper._LOAN_S", 60.0)
    room = CacheRoom(measure(bench.caches.run, bench.caches.make))
    engine = bench.engine(PromptCache(bench.cutter, None), room)
    sequence = bench.sequence("r", bench.tokens(700), boundaries=[700], max_tokens=2)
    expected = _ids(_run(engine, sequence)["r"])
    # Nobody uses it: what it has is all that it keeps.
    floor_bytes = room.needed_bytes([BatchSize(1, 1)])
    room.limit_bytes = floor_bytes + engine.need.cache_bytes
    engine.add(sequence)
    tokens: list[Token] = []
    for _ in range(1000):
        need = engine.need
        tokens += step(engine)
        room.limit_bytes = max(floor_bytes, need.wanted_bytes) + need.cache_wanted_bytes
        engine.make_room()
    assert _ids(tokens) == expected
    assert {token.cached_tokens for token in tokens} == {640}


def test_waits_are_short_without_a_loan(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.engines.keeper._LOAN_S", 0.05)
    cache = PromptCache(bench.cutter, None)
    room = CacheRoom(measure(bench.caches.run, bench.caches.make))
    engine = bench.engine(cache, room)
    sequence = bench.sequence("r", bench.tokens(300), boundaries=[300])
    expected = _ids(_run(engine, sequence)["r"])
    room.limit_bytes = room.needed_bytes([BatchSize(1, 512)]) + cache.bytes_ // 2
    engine.add(sequence)
    assert step(engine) == []
    assert (engine.fetching, engine.active, engine.waiting) == (True, 0, 1)
    assert engine.need.wanted_bytes + engine.need.cache_wanted_bytes > room.limit_bytes
    engine.remove(["r"])
    assert not engine.fetching
    engine.add(sequence)
    deadline = time.monotonic() + 60
    tokens: list[Token] = []
    while engine.active + engine.waiting and time.monotonic() < deadline:
        tokens += step(engine)
    assert _ids(tokens) == expected
    assert not engine.fetching


def test_without_a_prompt_cache_nothing_is_held_of_what_has_ended(bench: Bench) -> None:
    """Models whose caches can't be restored have none."""
    engine = bench.engine()
    held_bytes = []
    # Of a process of tests all else would be looked through each time.
    gc.freeze()
    for number in range(4):
        _run(engine, bench.sequence(str(number), bench.tokens(150, seed=number)))
        gc.collect()
        mx.clear_cache()
        held_bytes.append(mx.get_active_memory())
    gc.unfreeze()
    assert held_bytes[1] == held_bytes[-1]
