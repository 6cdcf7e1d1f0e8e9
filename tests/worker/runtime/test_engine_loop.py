"""What an engine says of its needs between two steps."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from pathlib import Path as Folder

import msgspec

from protocol.life import Need
from protocol.prompt_store.store import PromptStore
from tests.support import shapes
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import CacheRoom, ContextInForce, WorkerLimits, measure
from worker.engines.sequence import Sequence
from worker.load.loading import load
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.disk import Disk
from worker.prompt_cache.path import Paths
from worker.runtime.engine_loop import EngineLoop
from worker.runtime.engine_thread import EngineStep, EngineThread, Look
from worker.runtime.warm import WarmUp

PROMPT = [5 + index % 200 for index in range(900)]


class Worker:
    """The engine's side of one, that is asked for one token and ends."""

    def __init__(self, model: Folder, store: PromptStore) -> None:
        loaded = load(str(model), lambda _done, _total: None, lambda: False)
        caches = Caches(loaded.model)
        cutter = Cutter(caches.run, caches.make)
        room = CacheRoom(measure(caches.run, caches.make), weight_bytes=loaded.weight_bytes)
        self.thread = EngineThread(lambda _: None, lambda: None)
        disk = Disk(store, "m", b"", lambda: self.thread.post(Look()))
        self.cache = PromptCache(cutter, disk)
        self.paths = Paths(b"", store, needs_snapshots=cutter.needs_snapshots)
        engine = BatchedEngine(loaded.model, (), 8, room, prompt_cache=self.cache)
        limits = WorkerLimits(room)
        # More than it will want: nobody answers what it says.
        limits.set_limit(1 << 34, 1 << 20)
        self.warming = WarmUp(engine, self.cache, room, 40, loaded.vocabulary)
        self.loop = EngineLoop(
            self.thread, engine, limits, ContextInForce(4096), at_rest=[self.warming]
        )

    def answer(self) -> tuple[int, list[Need]]:
        """How much of the prompt was cached, and what was said until the engine rested."""
        path = self.paths.find(PROMPT, "")
        self.thread.post(Sequence("r", PROMPT, 1, None, ignore_eos=True, path=path))
        running = threading.Thread(target=self.loop.run)
        running.start()
        cached_tokens, needs, until = None, [], time.monotonic() + 120
        while time.monotonic() < until:
            match self.thread.next_event():
                case EngineStep(_, [token]):
                    cached_tokens = token.cached_tokens
                case Need() as need:
                    needs.append(need)
                    if cached_tokens is not None and not need.used_bytes + need.wanted_bytes:
                        break
                case _:
                    time.sleep(0.001)
        self.thread.finish()
        running.join(60)
        self.cache.close(60)
        assert cached_tokens is not None
        return cached_tokens, needs


def test_a_block_that_is_read_is_no_news(tmp_path: Folder) -> None:
    model = shapes.full_attention(tmp_path / "model")
    store = PromptStore(tmp_path / "store", 1 << 30, 1 << 30)
    assert Worker(model, store).answer()[0] == 0
    worker = Worker(model, store)
    cached_tokens, needs = worker.answer()
    assert cached_tokens == 896
    while_busy = [need for need in needs if need.used_bytes + need.wanted_bytes]
    assert len(while_busy) > 1
    for before, after in pairwise(while_busy):
        assert after != msgspec.structs.replace(before, cache_bytes=after.cache_bytes)
    # Once nothing is left to do it is told to the byte what can't be taken away.
    assert needs[-1].cache_bytes > 0


def test_the_rest_of_the_warm_up_runs_at_rest(tmp_path: Folder) -> None:
    model = shapes.full_attention(tmp_path / "model")
    worker = Worker(model, PromptStore(tmp_path / "store", 1 << 30, 1 << 30))
    worker.warming.compile(awaited=True)
    running = threading.Thread(target=worker.loop.run)
    running.start()
    until = time.monotonic() + 120
    while not worker.warming.is_over and time.monotonic() < until:
        time.sleep(0.05)
    worker.thread.finish()
    running.join(60)
    assert worker.warming.is_over
    worker.cache.close(60)
