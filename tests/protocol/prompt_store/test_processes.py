"""Several processes write at once, and are killed at any moment."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.prompt_store.store import PromptStore
from tests.protocol.prompt_store.tree import (
    PLENTY,
    ROOT,
    block,
    bytes_on_disk,
    files,
    inside,
    payload_of,
    write,
)

pytestmark = pytest.mark.processes

MOST_BYTES = 60 * 4096
WRITERS, ROUNDS = 2, 6


def _start(folder: Path, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.protocol.prompt_store.writer"]
    return subprocess.Popen(
        [*command, str(folder), str(MOST_BYTES), str(seed)], stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PromptStore]:
    opened = PromptStore(tmp_path / "prompts", MOST_BYTES, PLENTY)
    yield opened
    opened.close()


def _walk(store: PromptStore) -> int:
    """How many blocks can be read from the root on; each is as it was written."""
    found, parents = 0, [ROOT]
    while parents:
        for entry in store.children(parents.pop()):
            payload = store.read(entry.key)
            if payload is not None:
                assert payload == payload_of(entry.key)
                assert entry == block(entry.parent, entry.token_ids[0])[0]
                found += 1
            parents.append(entry.key)
    return found


def test_writers_that_are_killed(store: PromptStore, tmp_path: Path) -> None:
    folder = tmp_path / "prompts"
    choice, found = random.Random(1), 0
    for number in range(ROUNDS):
        writers = [_start(folder, WRITERS * number + index) for index in range(WRITERS)]
        try:
            for writer in writers:
                assert writer.stdout is not None
                assert writer.stdout.readline() == "writing\n"
            until = time.monotonic() + choice.uniform(0.0, 0.4)
            while True:
                found += _walk(store)
                assert store.used_bytes() <= MOST_BYTES
                if time.monotonic() >= until:
                    break
        finally:
            for writer in writers:
                writer.kill()
            status = [process.wait(120) for process in writers]
            for writer in writers:
                writer.communicate()
        assert status == [-signal.SIGKILL] * WRITERS
    store.sweep()
    assert not list(inside(folder).glob("unfinished/*"))
    assert store.used_bytes() == bytes_on_disk(folder) <= MOST_BYTES
    assert found > 0
    assert write(store, ROOT, 9) is not None
    assert _walk(store) > 0


def test_a_writer_that_is_stuck(store: PromptStore, tmp_path: Path) -> None:
    """It holds the index's lock for as long as it is there: nothing is written, all is read."""
    key = write(store, ROOT, 1)
    assert key is not None
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('BEGIN IMMEDIATE'); print('holds', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(inside(tmp_path / "prompts") / "index.sqlite")]
    holder = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holds\n"
        assert write(store, ROOT, 2) is None
        assert store.read(key) == payload_of(key)
        assert [child.key for child in store.children(ROOT)] == [key]
    finally:
        holder.kill()
        holder.communicate()
    assert write(store, ROOT, 2) is not None


def test_threads_that_share_a_store(store: PromptStore, tmp_path: Path) -> None:
    lies: list[bytes] = []

    def work(seed: int) -> None:
        choice = random.Random(seed)
        known = [ROOT]
        for _ in range(60):
            known.append(block(choice.choice(known), choice.randrange(3))[0].key)
            write(store, known[choice.randrange(len(known))], choice.randrange(3))
            key = choice.choice(known)
            if store.read(key) not in (None, payload_of(key)):
                lies.append(key)
            if choice.random() < 0.02:
                store.close()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not lies
    assert store.used_bytes() == bytes_on_disk(tmp_path / "prompts") <= MOST_BYTES
    assert files(tmp_path / "prompts")
