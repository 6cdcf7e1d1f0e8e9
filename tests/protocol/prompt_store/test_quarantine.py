"""Blocks in quarantine are not found, and still count."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from protocol.prompt_store.store import PromptStore
from tests.protocol.prompt_store.tree import PLENTY, ROOT, bytes_on_disk, files, write, written


def test_a_quarantine_takes_all_that_follows(store: PromptStore, folder: Path) -> None:
    first = written(store, ROOT, 1)
    second = written(store, first, 1)
    third, branch = written(store, second, 1), written(store, second, 2)
    beside = written(store, first, 2)
    assert store.quarantine([second]) == 3
    found = [key for key in (first, second, third, branch, beside) if store.has(key)]
    assert found == [first, beside]
    assert store.read(second) is None
    assert [entry.key for entry in store.children(first)] == [beside]
    assert store.children(second) == []
    again = PromptStore(folder, PLENTY, PLENTY)
    assert not again.has(third), "not even by a later process"
    again.close()


def test_a_block_that_is_gone_takes_its_children_along(store: PromptStore) -> None:
    child = written(store, bytes(range(16)), 1)
    assert store.quarantine([bytes(range(16))]) == 1
    assert not store.has(child)


def test_blocks_in_quarantine_count_until_they_are_cleared(
    store: PromptStore, folder: Path
) -> None:
    first = written(store, ROOT, 1)
    written(store, first, 1)
    before = store.used_bytes()
    store.quarantine([first])
    assert store.used_bytes() == before == bytes_on_disk(folder)
    assert len(files(folder)) == 2
    assert store.sweep() == 0, "they are no leftovers"
    assert store.clear("m") == before
    assert not files(folder)


def test_a_block_that_is_computed_anew_takes_the_place(store: PromptStore) -> None:
    first = written(store, ROOT, 1, size=100)
    store.quarantine([first])
    assert written(store, ROOT, 1, size=200) == first
    assert store.read(first) == bytes(200)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.booleans()), max_size=40))
def test_blocks_in_quarantine_are_evicted(
    tmp_path_factory: object, steps: list[tuple[int, int, bool]]
) -> None:
    """However blocks come and go, a store of eight files always has room for one more."""
    folder = tmp_path_factory.mktemp("store")  # type: ignore[attr-defined]
    store = PromptStore(folder, PLENTY, PLENTY, most_files=8)
    keys = [ROOT]
    for place, token, going in steps:
        key = keys[place % len(keys)]
        if going:
            store.quarantine([key])
        else:
            new = write(store, key, token)
            keys += [new] if new is not None else []
    for token in range(10, 20):
        assert write(store, ROOT, token) is not None
    assert len(files(folder)) <= 8
    store.close()
