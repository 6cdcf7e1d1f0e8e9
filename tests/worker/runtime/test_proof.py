"""The cache proves itself at rest: whatever changed is found, and nothing else."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path as Folder

import mlx.core as mx
import pytest

from protocol.life import CacheProven, CacheQuarantined
from protocol.prompt_store.store import PromptStore
from tests.support.stepping import step
from tests.worker.engines.test_cached_prompts import Bench, bench, folder
from worker.engines.room import CacheRoom, measure
from worker.prompt_cache.blocks import Block
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.cached_blocks import CachedBlock
from worker.prompt_cache.disk import Disk
from worker.prompt_cache.path import Paths
from worker.runtime.proof import Proof
from worker.runtime.recomputing import Recomputing

__all__ = ["bench", "folder"]

pytestmark = pytest.mark.usefixtures("steady_pace")
HOUR_S = 3600.0
KINDS = [
    ("full", True, None),
    ("sliding window", True, None),
    ("hybrid", True, None),
    ("linear attention", True, None),
    ("full", True, 8),
]
OTHER_KINDS = [
    ("recurrent", True, None),
    ("full", False, None),
    ("sliding window", False, None),
    ("chunked", False, None),
    ("full", True, 4),
]
FULL = pytest.mark.parametrize("bench", KINDS[:1], indirect=True)
FIVE_KINDS = pytest.mark.parametrize(
    "bench", KINDS, indirect=True, ids=lambda kind: f"{kind[0]}-{kind[2]}"
)


class Resting:
    """A worker with a cache that found prompts, on a clock of its own."""

    def __init__(self, bench: Bench, store: PromptStore | None = None) -> None:
        self.bench = bench
        self.now = 0.0
        self.proven: list[CacheProven] = []
        self.quarantined: list[CacheQuarantined] = []
        bench.paths = Paths(b"", store, needs_snapshots=bench.cutter.needs_snapshots)
        disk = None if store is None else Disk(store, "m", b"", lambda: None)
        self.cache = PromptCache(bench.cutter, disk, self.quarantined.append)
        self.room = CacheRoom(measure(bench.caches.run, bench.caches.make))
        self.engine = bench.engine(self.cache, self.room)
        recomputing = Recomputing(self.engine, bench.caches, self.cache, self.room)
        self.proof = Proof(self.cache, recomputing, self.proven.append, lambda: self.now)

    def ask(self, prompt: list[int], boundaries: list[int]) -> int:
        """Returns how many tokens of the prompt were found."""
        sequence = self.bench.sequence("r", prompt, boundaries=boundaries, max_tokens=2)
        self.engine.add(sequence)
        tokens = []
        deadline = time.monotonic() + 60
        while self.engine.active + self.engine.waiting and time.monotonic() < deadline:
            tokens += step(self.engine)
        return tokens[0].cached_tokens

    def find(self, seed: int = 0, blocks: int = 4) -> list[int]:
        """A prompt that is in the cache, and was found there."""
        prompt = self.bench.tokens(blocks * 64 + 10, seed)
        boundaries = [64, blocks * 64]
        assert [self.ask(prompt, boundaries) > 0 for _ in range(2)] == [False, True]
        return prompt

    def rest(self, seconds: float, is_enough: Callable[[], bool] = lambda: False) -> None:
        until = self.now + seconds
        while self.now < until and not self.proof.is_over and not is_enough():
            self.now += self.proof.quiet_s
            began_at = time.monotonic()
            self.proof.go_on(lambda: False)
            self.now += time.monotonic() - began_at

    def change(self, key: bytes, change: Callable[[mx.array], mx.array], *, noted: bool) -> None:
        """Put another array in the place of a block's largest one. With `noted` its digest is that
        of the changed block: it was wrong from the beginning.
        """
        entry = self.cache._blocks._entries[key]
        cached = entry.content
        arrays = list(cached.block.arrays)
        place = max(range(len(arrays)), key=lambda index: arrays[index].size)
        arrays[place] = change(arrays[place])
        block = Block(tuple(arrays), cached.block.structure)
        content = CachedBlock(block, cached.parent)
        self.cache.record_digests(lambda: False)
        self.cache._blocks._entries[key] = replace(entry, content=content)
        if noted:
            del self.cache._digests[key]
            self.cache.has_new = True


def _bit(chance: random.Random) -> Callable[[mx.array], mx.array]:
    def change(array: mx.array) -> mx.array:
        raw = mx.contiguous(array).reshape(-1).view(mx.uint8)
        raw[chance.randrange(raw.size)] ^= 1 << chance.randrange(8)
        return raw.view(array.dtype).reshape(array.shape)

    return change


def _swap(chance: random.Random) -> Callable[[mx.array], mx.array]:
    def change(array: mx.array) -> mx.array:
        flat = mx.contiguous(array).reshape(-1)
        one = chance.randrange(flat.size)
        other = next(
            place
            for place in iter(lambda: chance.randrange(flat.size), None)
            if flat[place].item() != flat[one].item()
        )
        flat[one], flat[other] = mx.array(flat[other]), mx.array(flat[one])
        return flat.reshape(array.shape)

    return change


def _shift(array: mx.array) -> mx.array:
    """By a token."""
    return mx.roll(array, 1, axis=-2)


@FIVE_KINDS
def test_nothing_is_found_where_nothing_is_wrong(bench: Bench) -> None:
    resting = Resting(bench)
    prompts = [resting.find(seed) for seed in range(3)]
    resting.rest(HOUR_S)
    assert not resting.quarantined
    assert sum(proven.tokens for proven in resting.proven) == 3 * 256
    assert sum(proven.blocks for proven in resting.proven) >= 12
    assert not any(proven.failures or proven.off for proven in resting.proven)
    assert resting.ask(prompts[0], [64, 256]) == 256


@FIVE_KINDS
@pytest.mark.parametrize("kind", ["bit", "swap", "shift"])
def test_a_change_in_memory_is_found(bench: Bench, kind: str) -> None:
    resting = Resting(bench)
    prompt = resting.find()
    chance = random.Random(3)
    change = {"bit": _bit(chance), "swap": _swap(chance), "shift": _shift}[kind]
    resting.change(chance.choice(resting.cache.keys()), change, noted=False)
    resting.rest(HOUR_S)
    assert [found.why for found in resting.quarantined] == ["bytes in memory have changed"]
    assert resting.ask(prompt, [64, 256]) < 256
    assert resting.cache.failures == 1


@pytest.mark.slow
@FIVE_KINDS
def test_fifty_of_fifty_changes_are_found_within_an_hour(bench: Bench) -> None:
    chance = random.Random(5)
    for number in range(50):
        resting = Resting(bench)
        resting.find(number, blocks=2)
        change = [_bit(chance), _swap(chance), _shift][number % 3]
        resting.change(chance.choice(resting.cache.keys()), change, noted=False)
        resting.rest(HOUR_S, lambda resting=resting: bool(resting.quarantined))
        assert len(resting.quarantined) == 1, number
        assert resting.now < HOUR_S


@pytest.mark.slow
@FIVE_KINDS
def test_a_day_of_rest_finds_nothing_where_nothing_is_wrong(bench: Bench) -> None:
    """With a prompt in each half an hour, so that there is content to prove: 48 prompts, and the
    bytes of all blocks every ten minutes.
    """
    resting = Resting(bench)
    for seed in range(48):
        resting.find(seed, blocks=3 + seed % 4)
        resting.rest(HOUR_S / 2)
        resting.cache.shrink(40 * bench.cutter.block_bytes)
    assert resting.now >= 24 * HOUR_S
    assert not resting.quarantined
    assert sum(proven.tokens for proven in resting.proven) >= 48 * 192
    assert sum(bool(proven.blocks) for proven in resting.proven) >= 140


@pytest.mark.slow
@pytest.mark.parametrize("bench", OTHER_KINDS, indirect=True, ids=str)
def test_other_kinds_of_caches(bench: Bench) -> None:
    resting = Resting(bench)
    resting.find()
    resting.rest(HOUR_S)
    assert not resting.quarantined
    assert sum(proven.tokens for proven in resting.proven) == 256
    resting.change(resting.cache.keys()[0], _shift, noted=True)
    resting.proof._proven.clear()
    resting.rest(HOUR_S)
    assert len(resting.quarantined) == 1


@FIVE_KINDS
def test_a_block_that_came_wrong_is_found(bench: Bench) -> None:
    """Its bytes are those that came, but they are another token's."""
    resting = Resting(bench)
    prompt = resting.find()
    key = bench.paths.find(prompt, "").keys[1]
    resting.change(key, _shift, noted=True)
    resting.rest(HOUR_S)
    (found,) = resting.quarantined
    assert found.why.startswith("computed anew it differs")
    assert resting.ask(prompt, [64, 256]) <= 64


@FULL
def test_a_changed_file_is_found(bench: Bench, tmp_path: Folder) -> None:
    store = PromptStore(tmp_path, 1 << 30, 1 << 30)
    first = Resting(bench, store)
    prompt = first.find()
    first.cache.close(60)
    files = [path for path in tmp_path.glob("*/??/*") if path.is_file()]
    damaged = bytearray(files[0].read_bytes())
    damaged[-1] ^= 1
    files[0].write_bytes(damaged)
    later = Resting(bench, store)
    deadline = time.monotonic() + 60
    while not later.quarantined and time.monotonic() < deadline:
        later.rest(60)
        time.sleep(0.01)
    later.cache.close(60)
    assert [found.why for found in later.quarantined] == ["bytes on disk have changed"]
    assert bench.paths.find(prompt, "").stored < 4
    store.close()


@FULL
def test_a_cache_that_is_wrong_twice_is_off_until_it_is_cleared(bench: Bench) -> None:
    resting = Resting(bench)
    for seed in range(2):
        prompt = resting.find(seed)
        key = bench.paths.find(prompt, "").keys[0]
        resting.change(key, _shift, noted=False)
        resting.rest(HOUR_S)
    assert [proven.off for proven in resting.proven if proven.failures] == [False, True]
    assert resting.proof.is_over
    assert [resting.ask(bench.tokens(200, 9), [64]) for _ in range(2)] == [0, 0]
    assert resting.cache.bytes_ == 0
    resting.engine.clear_prompts()
    resting.find(5)


@FULL
def test_a_request_interrupts_a_proof(bench: Bench) -> None:
    resting = Resting(bench)
    resting.find()
    for _ in range(50):
        resting.now += resting.proof.quiet_s
        resting.proof.go_on(lambda: True)
    assert not any(proven.tokens for proven in resting.proven)
    resting.rest(HOUR_S)
    assert sum(proven.tokens for proven in resting.proven) == 256
