"""After the rehearsals of a load the first prompt is computed as the next ones, and nothing of them
is left.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path as Folder

import pytest

from protocol.prompt_store.index import Speeds
from protocol.prompt_store.store import PromptStore
from tests.support import shapes
from tests.support.stepping import step
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import CacheRoom, measure
from worker.engines.row_computer import make_draft
from worker.engines.sequence import Engine, EngineNeed, Sequence
from worker.engines.sequential import SequentialEngine
from worker.guesses.costs import WIDTHS
from worker.load.loading import load
from worker.mlx_lm.guessing import DRAFTED
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.disk import Disk
from worker.prompt_cache.path import Paths
from worker.runtime import warm
from worker.runtime.warm import WarmUp

CONTEXT = 1024


class Bench:
    """An engine with a prompt cache that has a tier on disk."""

    def __init__(self, model: Folder, folder: Folder, *, batched: bool) -> None:
        loaded = load(str(model), lambda _done, _total: None, lambda: False)
        caches = Caches(loaded.model)
        cutter = Cutter(caches.run, caches.make)
        self.room = room = CacheRoom(measure(caches.run, caches.make))
        self.vocabulary = loaded.vocabulary
        self.store = PromptStore(folder / "store", 1 << 30, 1 << 30)
        self.disk = Disk(self.store, "m", b"", lambda: None)
        self.cache = PromptCache(cutter, self.disk)
        self.paths = Paths(b"", self.store, needs_snapshots=cutter.needs_snapshots)
        self.engine: Engine = (
            BatchedEngine(loaded.model, (), 8, room, prompt_cache=self.cache)
            if batched
            else SequentialEngine(loaded.model, (), room, caches, self.cache)
        )

    def warming(self, context_tokens: int = CONTEXT) -> WarmUp:
        return WarmUp(self.engine, self.cache, self.room, context_tokens, self.vocabulary)

    def warm(self, context_tokens: int = CONTEXT) -> None:
        self.warming(context_tokens).start(awaited=False)

    def steps_to_first_token(self, token_ids: list[int]) -> int:
        boundaries = [len(token_ids)] if self.paths.needs_boundaries else []
        path = self.paths.find(token_ids, "", boundaries)
        self.engine.add(Sequence("r", token_ids, 1, None, ignore_eos=True, path=path))
        for steps in range(1, 100):
            if step(self.engine):
                return steps
        raise AssertionError("no token")

    def write_all(self) -> None:
        """To disk, as far as anything waits for that."""
        self.cache.close(at_most_s=60)


@pytest.fixture(
    params=[(shapes.full_attention, True), (shapes.full_attention, False), (shapes.hybrid, True)],
    ids=["batched", "sequential", "snapshots"],
)
def bench(request: pytest.FixtureRequest, tmp_path: Folder) -> Bench:
    build, batched = request.param
    make: Callable[[Folder], Folder] = build
    return Bench(make(tmp_path / "model"), tmp_path, batched=batched)


@pytest.mark.usefixtures("steady_pace")
def test_the_first_prompt_is_computed_as_the_second(bench: Bench) -> None:
    bench.warm()
    first, second = ([number] * 110 for number in (5, 6))
    assert bench.steps_to_first_token(first) == bench.steps_to_first_token(second)
    bench.write_all()


def test_nothing_is_left(bench: Bench) -> None:
    bench.warm()
    assert bench.engine.active + bench.engine.waiting == 0
    assert bench.engine.need == EngineNeed(0, 0, 0)
    assert bench.cache.bytes_ == 0
    speeds = bench.cache.speeds
    assert (speeds.read_bytes_per_s, speeds.prefill_tokens_per_s) == (None, None)
    bench.write_all()
    assert bench.store.used_bytes() == 0
    assert bench.store.speeds(b"") == Speeds()


def test_prompts_are_cached_afterwards(bench: Bench) -> None:
    bench.warm()
    bench.steps_to_first_token([5] * 110)
    assert bench.engine.need.cache_wanted_bytes > bench.cache.bytes_ > 0
    bench.write_all()
    assert bench.store.used_bytes() > 0


def test_parts_of_the_warm_up_on_a_gpu(bench: Bench) -> None:
    warming = bench.warming(200)
    with bench.cache.rehearsal():
        warming.compile(awaited=False)
        assert bench.engine.active + bench.engine.waiting == 0
        assert bench.cache.bytes_ > 0
    while not warming.is_over:
        warming.go_on(lambda: False)
    assert bench.engine.need == EngineNeed(0, 0, 0)
    bench.write_all()
    assert bench.store.used_bytes() == 0


def test_the_rest_of_the_warm_up_runs_later(bench: Bench) -> None:
    """It leaves alone what is kept and known by then."""
    warming = bench.warming(200)
    warming.compile(awaited=True)
    bench.steps_to_first_token([5] * 110)
    bench.engine.store_blocks()
    cached_bytes, speeds = bench.cache.bytes_, bench.cache.speeds
    known = speeds.prefill_tokens_per_s
    for _ in range(50):
        assert not warming.is_over
        warming.go_on(lambda: False)
        assert bench.engine.active + bench.engine.waiting == 0
        if warming.is_over:
            break
    assert bench.cache.evictable_bytes > 0
    assert bench.cache.bytes_ <= cached_bytes
    assert bench.cache.speeds is speeds
    assert speeds.prefill_tokens_per_s == known
    stored_bytes = bench.store.used_bytes()
    bench.write_all()
    assert bench.store.used_bytes() >= stored_bytes > 0


def test_an_unload_interrupts_it_in_the_load(bench: Bench) -> None:
    warming = bench.warming(200)
    asked = 0

    def is_interrupted() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    with bench.cache.rehearsal():
        warming.compile(awaited=False, is_interrupted=is_interrupted)
    assert not warming.is_over
    assert bench.engine.active + bench.engine.waiting == 0
    bench.write_all()


def test_a_request_interrupts_the_warm_up(bench: Bench) -> None:
    warming = bench.warming(200)
    warming.compile(awaited=True)
    calls = iter([False, True])
    warming.go_on(lambda: next(calls, True))
    assert not warming.is_over
    assert bench.engine.active + bench.engine.waiting == 0
    bench.write_all()


def test_without_memory_to_spare_it_is_left_alone(bench: Bench) -> None:
    bench.steps_to_first_token([5] * 110)
    bench.engine.store_blocks()
    warming = bench.warming(200)
    warming.compile(awaited=True)
    bench.room.limit_bytes = bench.room.needed_bytes([]) + bench.cache.bytes_
    cached_bytes = bench.cache.evictable_bytes
    warming.go_on(lambda: False)
    assert warming.is_over
    assert bench.cache.evictable_bytes == cached_bytes > 0
    bench.write_all()


@pytest.mark.parametrize("context_tokens", [1, 4, 66])
def test_a_context_that_is_short(bench: Bench, context_tokens: int) -> None:
    bench.warm(context_tokens)
    assert bench.engine.need == EngineNeed(0, 0, 0)
    bench.write_all()


def test_the_costs_of_steps_are_measured(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, however long that takes here, and while the engine has nothing to do."""
    monkeypatch.setattr(warm, "_LONG_MEASURE_S", float("inf"))
    monkeypatch.setattr(warm, "_MEASURED_ROWS", (1, 3))
    costs = bench.engine.step_costs
    warming = bench.warming()
    warming.start(awaited=False)
    if costs is None:
        assert warming.is_over
        return
    while not warming.is_over:
        warming.go_on(lambda: False)
        assert costs.rehearsed is None
    assert all(costs.is_measured(rows, width) for rows in (1, 3) for width in WIDTHS)
    assert bench.cache.speeds.step_seconds == costs.seconds
    again = bench.warming()
    again.start(awaited=False)
    assert again.is_over, "all is known"
    bench.write_all()


def test_the_passes_of_a_draft_model_are_measured(tmp_path: Folder) -> None:
    model = load(str(shapes.DEMO), lambda _done, _total: None, lambda: False).model
    draft = make_draft(model, model, 3)
    engine = BatchedEngine(model, (), 8, CacheRoom(measure(model)), draft=draft)
    warming = WarmUp(engine, None, CacheRoom(measure(model)), CONTEXT, 600)
    warming.start(awaited=False)
    while not warming.is_over and not engine.step_costs.is_measured(1, DRAFTED):
        warming.go_on(lambda: False)
    assert engine.step_costs.is_measured(1, DRAFTED)
    assert engine.step_costs.ratio(1, DRAFTED) > 0.0
    assert "1x0" in engine.step_costs.seconds


def test_an_interrupted_measurement_begins_anew(bench: Bench) -> None:
    costs = bench.engine.step_costs
    if costs is None:
        return
    warming = bench.warming()
    warming.start(awaited=False)
    part = warming._next
    calls = iter([False, False, True])
    warming.go_on(lambda: next(calls, True))
    assert warming._next is part
    assert costs.rehearsed is None
    assert bench.engine.active + bench.engine.waiting == 0
    bench.write_all()
