"""Blocks in quarantine are not found: not by this worker, and not by a later one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from protocol.life import CacheQuarantined
from protocol.prompt_store.store import PromptStore
from tests.support.stepping import step
from tests.worker.engines.test_cached_prompts import Bench, bench, folder
from worker.engines.sequence import Engine, Sequence
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.disk import Disk
from worker.prompt_cache.path import Paths

__all__ = ["bench", "folder"]

pytestmark = pytest.mark.usefixtures("steady_pace")
KINDS = pytest.mark.parametrize(
    "bench",
    [("full", True, None), ("hybrid", True, None), ("sliding window", True, None)],
    indirect=True,
)


def _cached_tokens(engine: Engine, sequence: Sequence) -> int:
    engine.add(sequence)
    tokens = step(engine)
    deadline = time.monotonic() + 60
    while engine.active + engine.waiting and time.monotonic() < deadline:
        tokens += step(engine)
    return tokens[0].cached_tokens


@KINDS
def test_memory_doesnt_find_it(bench: Bench) -> None:
    news: list[CacheQuarantined] = []
    cache = PromptCache(bench.cutter, None, news.append)
    engine = bench.engine(cache)
    prompt = bench.tokens(200)
    branch = prompt[:140] + bench.tokens(100, seed=1)

    def cached_tokens(token_ids: list[int]) -> int:
        boundaries = [64, 128, 192, len(token_ids)]
        return _cached_tokens(engine, bench.sequence("r", token_ids, boundaries=boundaries))

    assert [cached_tokens(prompt), cached_tokens(prompt)] == [0, 192]
    assert [cached_tokens(branch), cached_tokens(branch)] == [128, 192]
    path = bench.paths.find(prompt, "", [192])
    assert cache.quarantine(path, 1, "it differs") >= 2
    assert cached_tokens(prompt[:100]) == 64, "what was before stays"
    assert cache.depth(bench.paths.find(branch, ""), len(branch)) <= 1, "a branch goes along"
    assert cached_tokens(prompt) <= 64
    assert cached_tokens(prompt) == 192, "it is computed anew, and cached again"
    (only,) = news
    assert only.why == "it differs"
    assert only.blocks_bytes >= only.blocks * bench.cutter.block_bytes / 2
    assert "computed by this worker" in only.source


@KINDS
def test_no_later_worker_finds_it_on_disk(bench: Bench, tmp_path: Path) -> None:
    store = PromptStore(tmp_path, 1 << 30, 1 << 30)
    bench.paths = Paths(b"", store, needs_snapshots=bench.cutter.needs_snapshots)
    prompt = bench.tokens(200)
    news: list[CacheQuarantined] = []

    def worker() -> PromptCache:
        return PromptCache(bench.cutter, Disk(store, "m", b"", lambda: None), news.append)

    def cached_tokens(cache: PromptCache) -> int:
        sequence = bench.sequence("r", prompt, boundaries=[64, 192])
        return _cached_tokens(bench.engine(cache), sequence)

    first = worker()
    assert cached_tokens(first) == 0
    first.close(60)
    second = worker()
    stale = bench.sequence("s", prompt, boundaries=[64, 192])
    assert cached_tokens(second) == 192, "from disk"
    path = bench.paths.find(prompt, "", [64, 192])
    second.quarantine(path, 0, "it differs")
    assert "read from disk, written by Bulkhead" in news[-1].source
    assert _cached_tokens(bench.engine(second), stale) == 0, "though its path was found before"
    second.close(60)
    assert [entry.kind for entry in store.children(path.root)] == ["block"], "it was written anew"
    third = worker()
    assert cached_tokens(third) == 192
    third.quarantine(bench.paths.find(prompt, "", [64, 192]), 0, "it differs")
    third.close(60)
    assert bench.paths.find(prompt, "", [64, 192]).stored == 0
    fourth = worker()
    assert cached_tokens(fourth) == 0
    fourth.close(60)
    store.close()


def test_blocks_on_their_way_to_the_disk_go_along(bench: Bench, tmp_path: Path) -> None:
    store = PromptStore(tmp_path, 1 << 30, 1 << 30)
    bench.paths = Paths(b"", store, needs_snapshots=bench.cutter.needs_snapshots)
    cache = PromptCache(bench.cutter, Disk(store, "m", b"", lambda: None))
    engine = bench.engine(cache)
    prompt = bench.tokens(200)
    engine.add(bench.sequence("r", prompt, boundaries=[64, 192], max_tokens=2))
    while engine.active + engine.waiting:
        engine.step()
        engine.store_blocks()
    path = bench.paths.find(prompt, "", [64, 192])
    cache.quarantine(path, 0, "it differs")
    cache.close(60)
    assert bench.paths.find(prompt, "", [64, 192]).stored == 0
    store.close()
