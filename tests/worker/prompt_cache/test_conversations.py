"""Random conversations that branch say the same with and without the cache, whatever befalls it."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol.prompt_store import payloads
from protocol.prompt_store.store import PromptStore
from tests.support import shapes
from tests.support.stepping import step
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import BatchSize, CacheRoom, CacheSizes, measure
from worker.engines.sequence import Engine, Sequence
from worker.engines.sequential import SequentialEngine
from worker.load.loading import LoadedModel, load
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.disk import Disk
from worker.prompt_cache.path import BLOCK_TOKENS, Paths

SHAPES: dict[str, Callable[[Path], Path]] = {
    "full attention": lambda _: shapes.DEMO,
    "sliding window": shapes.sliding_window,
    "state space": shapes.state_space,
    "hybrid": shapes.hybrid,
    "linear attention": shapes.linear_attention,
    "quantized": shapes.full_attention,
}
ANSWER_TOKENS = 8
ROOT = b"r" * 16


class Model:
    """A model, and the engines that it has with the caches that it is to have."""

    def __init__(self, loaded: LoadedModel, kv_bits: int | None) -> None:
        self.loaded = loaded
        self.caches = Caches(loaded.model, kv_bits)

    def engine(self, room: CacheRoom, prompt_cache: PromptCache | None = None) -> Engine:
        model, ends = self.caches.model, self.loaded.eos_token_ids
        if self.caches.can_be_merged:
            return BatchedEngine(model, ends, 8, room, prompt_cache=prompt_cache)
        return SequentialEngine(model, ends, room, self.caches, prompt_cache)


ORDINARY = ("full attention", "hybrid")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(shape, marks=() if shape in ORDINARY else pytest.mark.slow) for shape in SHAPES
    ],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = SHAPES[request.param](tmp_path_factory.mktemp("models") / "model")
    loaded = load(str(folder), lambda _done, _total: None, lambda: False)
    return Model(loaded, 8 if request.param == "quantized" else None)


class FullDisk:
    """Fails in the middle of a file, as long as it is full."""

    def __init__(self, write: Callable[[int, memoryview], None]) -> None:
        self.full = False
        self._write = write

    def write(self, descriptor: int, part: memoryview) -> None:
        if not self.full:
            self._write(descriptor, part)
            return
        self._write(descriptor, part[: part.nbytes // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class World:
    """A model with a cache that is restarted, squeezed and damaged, and one without."""

    def __init__(self, model: Model, folder: Path, seed: int, disk: FullDisk) -> None:
        self.random = random.Random(seed)
        self.conversations: list[list[int]] = [[]]
        self.cached_tokens = 0
        self.prompt_tokens = 0
        self._model = model
        self._folder = folder
        self._disk = disk
        self._number = 0
        self._room = CacheRoom(measure(model.caches.run, model.caches.make))
        self._plain = model.engine(CacheRoom(CacheSizes(0, 0, 1.0)))
        self._start()

    def turn(self) -> None:
        """Several go on at once, from wherever: the end of a conversation, or its middle."""
        self.ask([self._prompt() for _ in range(self.random.randint(1, 3))])

    def ask(self, prompts: list[list[int]]) -> None:
        """At once: who comes first is open."""
        expected = self._run(self._plain, prompts, cached=False)
        answers = self._run(self._engine, prompts, cached=True)
        assert answers == expected
        self.conversations += [
            prompt + answer for prompt, answer in zip(prompts, answers, strict=True)
        ]

    def restart(self) -> None:
        self.stop()
        self._start()

    def kill(self) -> None:
        """What is on disk just now, in the middle of whatever, is all that the next one has."""
        left = self._folder.with_name(f"{self._folder.name}-{self._number}")
        # Some files go while they are copied.
        with contextlib.suppress(shutil.Error):
            shutil.copytree(self._folder, left)
        self.stop()
        self._folder = left
        self._start()

    def fill_disk(self) -> None:
        """Until the next start."""
        self._disk.full = True

    def squeeze(self) -> None:
        """Half of what there is goes."""
        self._cache.shrink(self._cache.evictable_bytes // 2)

    def tighten(self) -> None:
        """No more memory than one sequence needs, and a little for the cache."""
        self._room.limit_bytes = self._room.needed_bytes([BatchSize(1, 1024)]) + 300_000
        self._engine.make_room()

    def loosen(self) -> None:
        self._room.limit_bytes = None

    def damage(self) -> None:
        self.stop()
        files = [path for path in self._folder.rglob("*") if path.is_file()]
        payloads = [file for file in files if not file.name.startswith("index")]
        for path in self.random.sample(payloads, min(3, len(payloads))):
            raw = bytearray(path.read_bytes())
            if raw:
                raw[self.random.randrange(len(raw))] ^= 0xFF
                path.write_bytes(raw[: self.random.choice([len(raw), len(raw) // 2])])
        self._start()

    def stop(self) -> None:
        self._cache.close(300.0)
        self._store.close()

    def _start(self) -> None:
        self._disk.full = False
        cutter = Cutter(self._model.caches.run, self._model.caches.make)
        self._store = PromptStore(self._folder, 1 << 30, 1 << 40)
        self._paths = Paths(ROOT, self._store, needs_snapshots=cutter.needs_snapshots)
        self._cache = PromptCache(cutter, Disk(self._store, "m", ROOT, lambda: None))
        self._engine = self._model.engine(self._room, self._cache)

    def _prompt(self) -> list[int]:
        before = self.random.choice(self.conversations[-12:])
        if self.random.random() < 0.3:
            before = before[: self.random.randint(0, len(before))]
        new = [self.random.randrange(2, 300) for _ in range(self.random.randint(1, 150))]
        return [*before, *new][-700:]

    def _run(self, engine: Engine, prompts: list[list[int]], *, cached: bool) -> list[list[int]]:
        answers: dict[str, list[int]] = {}
        for prompt in prompts:
            self._number += 1
            request_id = str(self._number)
            answers[request_id] = []
            boundaries = [len(prompt) - 3, self.random.randint(0, len(prompt))]
            path = self._paths.find(prompt, "", boundaries) if cached else None
            engine.add(
                Sequence(request_id, prompt, ANSWER_TOKENS, None, ignore_eos=True, path=path)
            )
        while engine.active + engine.waiting:
            for token in step(engine):
                answers[token.request_id].append(token.token_id)
                if cached and token.finish_reason is not None:
                    self.cached_tokens += token.cached_tokens
        self.prompt_tokens += sum(map(len, prompts)) if cached else 0
        return list(answers.values())


@pytest.fixture
def worlds(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], World]]:
    # What comes later than this is computed, which a busy machine would decide.
    monkeypatch.setattr("worker.prompt_cache.cache._LEAST_LATE_S", 300.0)
    disk = FullDisk(payloads._write)
    monkeypatch.setattr(payloads, "_write", disk.write)
    made: list[World] = []

    def make(seed: int) -> World:
        made.append(World(model, tmp_path / str(seed), seed, disk))
        return made[-1]

    yield make
    for world in made:
        world.stop()


def _live(world: World, turns: int) -> None:
    """An accident follows every other turn, and each comes as often as the others."""
    accidents: list[Callable[[], None]] = []
    for number in range(turns):
        world.turn()
        if number % 2 == 0:
            if not accidents:
                accidents = [
                    *(world.restart, world.squeeze, world.tighten, world.loosen, world.damage),
                    *(world.kill, world.fill_disk),
                ]
                world.random.shuffle(accidents)
            accidents.pop()()
    assert 0 < world.cached_tokens < world.prompt_tokens


def test_the_cache_changes_no_text(worlds: Callable[[int], World]) -> None:
    _live(worlds(1), 11)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2, 12))
def test_hundreds_of_conversations(worlds: Callable[[int], World], seed: int) -> None:
    _live(worlds(seed), 60)


def test_the_next_worker_finds_the_conversation(worlds: Callable[[int], World]) -> None:
    world = worlds(1)
    answer = [world.random.randrange(2, 300) for _ in range(400)]
    world.ask([answer])
    world.cached_tokens = 0
    world.restart()
    world.ask([[*answer, 5, 6, 7]])
    assert world.cached_tokens >= 400 - 2 * BLOCK_TOKENS
