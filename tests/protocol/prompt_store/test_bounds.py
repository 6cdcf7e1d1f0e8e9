"""How much is stored, and how fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol.prompt_store.payloads import Entry
from protocol.prompt_store.store import PromptStore
from tests.protocol.prompt_store.tree import (
    FILE,
    PLENTY,
    ROOT,
    Clock,
    block,
    bytes_on_disk,
    files,
    write,
    written,
)

Open = Callable[..., PromptStore]


@pytest.fixture
def opened(folder: Path, clock: Clock) -> Iterator[Open]:
    stores: list[PromptStore] = []

    def open_store(most_bytes: int = PLENTY, per_hour: int = PLENTY, **more: int) -> PromptStore:
        stores.append(PromptStore(folder, most_bytes, per_hour, clock=clock, **more))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def test_an_hour_of_all_stores(opened: Open, clock: Clock) -> None:
    one, two = opened(per_hour=3 * FILE), opened(per_hour=3 * FILE)
    written(one, ROOT, 1)
    clock.now += 1800
    written(two, ROOT, 2)
    written(one, ROOT, 3)
    # What is gone was written all the same.
    one.clear()
    for store in (one, two, opened(per_hour=3 * FILE)):
        assert write(store, ROOT, 4, size=100) is None
    clock.now += 1800
    assert write(one, ROOT, 4, size=100) is None
    clock.now += 60
    written(two, ROOT, 4)
    assert write(one, ROOT, 5, size=100) is None


def test_a_clock_that_is_set_back(opened: Open, clock: Clock) -> None:
    store = opened(per_hour=2 * FILE)
    written(store, ROOT, 1)
    clock.now -= 86400
    written(store, ROOT, 2)
    assert write(store, ROOT, 3, size=100) is None
    clock.now += 3660
    written(store, ROOT, 3)


def test_a_bound_that_was_lowered(opened: Open, folder: Path) -> None:
    old = opened(6 * FILE)
    keys = [written(old, ROOT, token) for token in range(6)]
    old.read(keys[0])
    new = opened(2 * FILE)
    # It is obeyed when the new one opens, and by the old one from then on.
    assert new.used_bytes() == bytes_on_disk(folder) == 2 * FILE
    assert set(files(folder)) == {keys[0], keys[5]}
    written(old, ROOT, 7)
    assert old.used_bytes() == 2 * FILE


def test_more_than_one_write_evicts_at_once(opened: Open) -> None:
    store = opened(PLENTY, most_files=150)
    for token in range(150):
        written(store, ROOT, token)
    assert opened(PLENTY, most_files=3).used_bytes() == 3 * FILE


def test_blocks_that_never_fit_are_not_written(opened: Open, folder: Path) -> None:
    store = opened(2 * FILE)
    stored = written(store, ROOT, 1)
    assert write(store, ROOT, 2, size=2 * FILE) is None
    assert store.has(stored)
    for nothing in (opened(0), opened(PLENTY, 0), opened(most_files=0)):
        assert write(nothing, ROOT, 3, size=100) is None


def test_a_chain_longer_than_the_bound(opened: Open) -> None:
    """Its beginning stays: without it the end can't be found."""
    store, keys = opened(3 * FILE), [ROOT]
    for _ in range(3):
        keys.append(written(store, keys[-1], 1))
    assert write(store, keys[-1], 1, size=100) is None
    assert [store.has(key) for key in keys] == [False, True, True, True]


def test_use_of_a_block_is_use_of_its_ancestors(opened: Open) -> None:
    store = opened(4 * FILE)
    first = written(store, ROOT, 1)
    second = written(store, first, 1)
    others = [written(store, ROOT, token) for token in (2, 3)]
    store.read(second)
    written(store, ROOT, 4)
    written(store, ROOT, 5)
    assert not any(map(store.has, others))
    # The end of the chain is the oldest now, and goes before its beginning.
    written(store, ROOT, 6)
    assert store.has(first)
    assert not store.has(second)


def test_use_of_a_block_that_is_gone(opened: Open) -> None:
    store = opened(4 * FILE)
    first = written(store, ROOT, 1)
    other = written(store, ROOT, 2)
    assert write(store, first, 1, size=100, owner="away") is not None
    store.clear("away")
    for token in (3, 4, 5):
        written(store, ROOT, token)
    assert store.has(first)
    assert not store.has(other)


def test_the_owners(opened: Open) -> None:
    store = opened()
    for token, owner in enumerate(("a", "b", "b")):
        assert write(store, ROOT, token, size=100, owner=owner) is not None
    assert write(store, ROOT, 0, size=100, owner="b") is None
    assert store.owners() == {"a": FILE, "b": 2 * FILE}
    assert store.clear("nobody") == 0
    assert store.clear("b") == 2 * FILE
    assert store.owners() == {"a": FILE}
    assert store.clear() == FILE
    assert store.owners() == {}


@pytest.mark.parametrize("size", [0, 1, 4096 - 52, 4096 - 51, 3_000_000])
def test_payloads_of_any_length(opened: Open, folder: Path, size: int) -> None:
    store = opened()
    entry, payload = block(ROOT, 1, bytes(range(256)) * (size // 256) + bytes(size % 256))
    parts = [payload[:7], bytearray(payload[7:1000]), memoryview(payload)[1000:], b""]
    assert store.write(entry, parts, "m")
    assert store.read(entry.key) == payload
    assert store.children(ROOT) == [entry]
    assert store.used_bytes() == bytes_on_disk(folder)


def test_parts_of_other_types_are_written_as_bytes(opened: Open) -> None:
    words = memoryview(bytes(range(64))).cast("d", (2, 4))
    entry, payload = block(ROOT, 1, bytes(range(64)))
    store = opened()
    assert store.write(entry, [words], "m")
    assert store.read(entry.key) == payload


def test_entries_that_make_no_sense(opened: Open, folder: Path) -> None:
    store = opened()
    key = b"k" * 16
    for entry in (
        Entry(key, ROOT, b"", 4, "block"),
        Entry(b"k", ROOT, b"", 3, "block"),
        Entry(key, b"", b"", 3, "block"),
        Entry(key, key, b"", 3, "block"),
    ):
        with pytest.raises(ValueError, match=r"16 bytes|the entry's"):
            store.write(entry, [b"abc"], "m")
    assert not folder.exists()
