"""Blocks on their way to the disk and from there, when all is cleared."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol.prompt_store import payloads
from protocol.prompt_store.payloads import Entry
from protocol.prompt_store.store import PromptStore
from worker.prompt_cache.disk import Disk

BOUND_S = 60.0


def _key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def _entry(number: int, payload: bytes) -> Entry:
    return Entry(_key(number), _key(number - 1), b"", len(payload), "block")


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Slow:
    """A disk that writes when it may."""

    def __init__(self, write: Callable[[int, memoryview], None]) -> None:
        self.begun = threading.Event()
        self.may = threading.Event()
        self._write = write

    def write(self, descriptor: int, part: memoryview) -> None:
        self.begun.set()
        self.may.wait(BOUND_S)
        self._write(descriptor, part)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PromptStore]:
    made = PromptStore(tmp_path, 1 << 30, 1 << 30)
    yield made
    made.close()


def test_clearing_drops_blocks_that_wait_to_be_written(
    store: PromptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(payloads._write)
    monkeypatch.setattr(payloads, "_write", slow.write)
    monkeypatch.setattr("worker.prompt_cache.disk._CLEAR_S", BOUND_S)
    disk = Disk(store, "m", b"", lambda: None)
    for number in range(1, 4):
        disk.write(_entry(number, b"payload"), [b"payload"])
    assert slow.begun.wait(BOUND_S)
    clearing = threading.Thread(target=disk.clear)
    clearing.start()
    clearing.join(0.05)
    assert clearing.is_alive(), "it waits for the one that is being written"
    slow.may.set()
    clearing.join(BOUND_S)
    # As the gateway does once it is told.
    store.clear("m")
    disk.write(_entry(9, b"payload"), [b"payload"])
    disk.close(BOUND_S)
    assert [number for number in range(1, 10) if store.has(_key(number))] == [9]
    assert disk.pending_bytes == 0


def test_clearing_drops_blocks_that_were_read(store: PromptStore) -> None:
    for number in range(1, 4):
        assert store.write(_entry(number, b"payload"), [b"payload"], "m")
    disk = Disk(store, "m", b"", lambda: None)
    fetch = disk.fetch([_key(1), _key(2)])
    _until(lambda: fetch.done)
    disk.clear()
    assert disk.look_again()
    assert disk.arrived() is None
    assert disk.pending_bytes == 0
    fetch = disk.fetch([_key(3)])
    _until(lambda: fetch.done)
    arrival = disk.arrived()
    assert arrival is not None
    assert (arrival.key, arrival.payload) == (_key(3), b"payload")
    disk.close(BOUND_S)
