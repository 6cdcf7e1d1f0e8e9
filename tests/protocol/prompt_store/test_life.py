"""What is stored, found, evicted and cleared, by two stores on one folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from protocol.prompt_store.index import Speeds
from protocol.prompt_store.payloads import Entry, disk_bytes
from protocol.prompt_store.store import PromptStore
from tests.protocol.prompt_store.tree import ROOT, block, bytes_on_disk, files, inside, payload_of

MOST_BYTES, MOST_FILES = 14 * 4096, 8
# Where there is one: what is waited for is the disk.
_FAST = Path("/dev/shm")
STORES, TOKENS, OWNERS = st.integers(0, 1), st.integers(0, 2), st.sampled_from(["one", "two"])


class _TwoStores(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=_FAST if _FAST.is_dir() else None))
        self.most_bytes, self.most_files = MOST_BYTES, MOST_FILES
        self.stores = [self.opened(), self.opened()]
        # All that was ever written, whether it is there or not: what may be looked for.
        self.ever: dict[bytes, Entry] = {}

    def opened(self) -> PromptStore:
        return PromptStore(self.folder, self.most_bytes, 1 << 40, most_files=self.most_files)

    def parents(self) -> st.SearchStrategy[bytes]:
        return st.sampled_from([ROOT, *self.ever])

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        shutil.rmtree(self.folder)


class _Exact(_TwoStores):
    """Nothing goes wrong: both stores do what a dictionary does."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[bytes, str] = {}
        self.used: dict[bytes, int] = {}
        self.tick = 0

    def use(self, key: bytes) -> None:
        self.tick += 1
        self.used[key] = self.tick

    def is_leaf(self, key: bytes) -> bool:
        return all(self.ever[data].parent != key for data in self.stored)

    def taken(self) -> int:
        return sum(disk_bytes(self.ever[key].payload_bytes) for key in self.stored)

    def evict(self, needed: int, files: int, spared: bytes | None) -> bool:
        while self.taken() + needed > self.most_bytes or len(self.stored) + files > self.most_files:
            leaves = [key for key in self.stored if key != spared and self.is_leaf(key)]
            if not leaves:
                return False
            self.drop(min(leaves, key=self.used.__getitem__))
        return True

    def drop(self, key: bytes) -> None:
        del self.stored[key]
        parent = self.ever[key].parent
        if parent in self.stored:
            self.used[parent] = max(self.used[parent], self.used[key])

    @rule(store=STORES, token=TOKENS, owner=OWNERS, data=st.data())
    def write(self, store: int, token: int, owner: str, data: st.DataObject) -> None:
        entry, payload = block(data.draw(self.parents()), token)
        half = len(payload) // 2
        parts = [bytearray(payload[:half]), memoryview(payload)[half:]]
        stored = self.stores[store].write(entry, parts, owner)
        self.ever[entry.key] = entry
        needed = disk_bytes(len(payload))
        if entry.key in self.stored or needed > self.most_bytes:
            assert not stored
        elif self.evict(needed, 1, entry.parent):
            assert stored
            self.stored[entry.key] = owner
            self.use(entry.key)
        else:
            assert not stored

    @rule(store=STORES, data=st.data())
    def read(self, store: int, data: st.DataObject) -> None:
        key = data.draw(self.parents())
        payload = self.stores[store].read(key)
        if key in self.stored:
            assert payload == payload_of(key)
            self.use(key)
        else:
            assert payload is None

    @rule(store=STORES, data=st.data())
    def look(self, store: int, data: st.DataObject) -> None:
        key = data.draw(self.parents())
        assert self.stores[store].has(key) == (key in self.stored)
        children = self.stores[store].children(key)
        assert sorted(children, key=lambda entry: entry.key) == [
            self.ever[data] for data in sorted(self.stored) if self.ever[data].parent == key
        ]

    @rule(store=STORES, owner=st.none() | OWNERS)
    def clear(self, store: int, owner: str | None) -> None:
        before = bytes_on_disk(self.folder)
        freed = self.stores[store].clear(owner)
        assert before - freed == bytes_on_disk(self.folder)
        for key, has in reversed(list(self.stored.items())):
            if owner in (None, has):
                self.drop(key)

    @rule(store=STORES, share=st.sampled_from([0.3, 0.6, 1.0]), crowd=st.booleans())
    def reopen(self, store: int, share: float, crowd: bool) -> None:
        self.stores[store].close()
        self.most_bytes = int(MOST_BYTES * share)
        self.most_files = 5 if crowd else MOST_FILES
        self.stores[store] = self.opened()
        # The bytes are everybody's bound at once; the files' bound is each store's own.
        self.stores[1 - store]._most_files = self.most_files
        self.stores[store].used_bytes()
        self.evict(0, 0, None)

    @rule(store=STORES)
    def sweep(self, store: int) -> None:
        assert self.stores[store].sweep() == 0

    @invariant()
    def all_is_accounted_for(self) -> None:
        for store in self.stores:
            assert store.used_bytes() == self.taken() == bytes_on_disk(self.folder)
            assert store.used_bytes("one") + store.used_bytes("two") == store.used_bytes()
        assert set(files(self.folder)) == set(self.stored)


class _Broken(_TwoStores):
    """Anything is done to the files: what is read is what was written, or nothing."""

    @initialize(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        for token in range(3):
            self.write(0, token, "one", data)

    @rule(store=STORES, token=TOKENS, owner=OWNERS, data=st.data())
    def write(self, store: int, token: int, owner: str, data: st.DataObject) -> None:
        entry, payload = block(data.draw(self.parents()), token)
        self.stores[store].write(entry, [payload], owner)
        self.ever[entry.key] = entry

    @rule(store=STORES, token=TOKENS, data=st.data())
    def write_and_read(self, store: int, token: int, data: st.DataObject) -> None:
        entry, payload = block(data.draw(self.parents()), token)
        self.ever[entry.key] = entry
        if self.stores[store].write(entry, [payload], "one"):
            assert self.stores[1 - store].read(entry.key) == payload

    @rule(store=STORES, data=st.data())
    def look(self, store: int, data: st.DataObject) -> None:
        parent = data.draw(self.parents())
        for entry in self.stores[store].children(parent):
            assert entry == self.ever[entry.key]
        assert self.stores[store].read(parent) in (None, payload_of(parent))

    @rule(data=st.data(), how=st.sampled_from(["flip", "cut", "grow", "swap", "delete", "link"]))
    def break_a_block(self, data: st.DataObject, how: str) -> None:
        found = sorted(files(self.folder).values())
        if not found:
            return
        path = data.draw(st.sampled_from(found))
        if how == "delete":
            path.unlink()
        elif how == "link":
            path.unlink()
            path.symlink_to(data.draw(st.sampled_from(found)))
        elif path.is_symlink():
            return
        elif how == "swap":
            other = data.draw(st.sampled_from(found))
            if other.is_file():
                # No longer than before: what it takes is bounded by what it took.
                path.write_bytes(other.read_bytes()[: path.stat().st_size])
        else:
            content = bytearray(path.read_bytes())
            at = data.draw(st.integers(0, max(len(content) - 1, 0)))
            if how == "flip" and content:
                content[at] ^= 1 << data.draw(st.integers(0, 7))
            elif how == "cut":
                del content[at:]
            else:
                content += b"\0"
            path.write_bytes(content)

    @rule(name=st.sampled_from(["index.sqlite", "all of the index", "the folder"]))
    def delete(self, name: str) -> None:
        where = inside(self.folder)
        if name == "the folder":
            shutil.rmtree(self.folder)
        elif name == "all of the index":
            for path in where.glob("index.sqlite*"):
                path.unlink()
        else:
            (where / name).unlink()

    @rule(content=st.sampled_from([b"", b"no database", b"SQLite format 3\0"]))
    def replace_the_index(self, content: bytes) -> None:
        path = inside(self.folder) / "index.sqlite"
        path.unlink()
        path.write_bytes(content.ljust(512, b"\0") if content else b"")

    @rule(at=st.integers(0, 1 << 16), value=st.integers(0, 255), cut=st.booleans())
    def scribble_into_the_index(self, at: int, value: int, cut: bool) -> None:
        path = inside(self.folder) / "index.sqlite"
        with path.open("r+b") as index:
            at %= max(path.stat().st_size, 1)
            if cut:
                index.truncate(at)
            else:
                index.seek(at)
                index.write(bytes([value] * 64))

    @rule(store=STORES)
    def clear(self, store: int) -> None:
        self.stores[store].clear()
        assert bytes_on_disk(self.folder) == 0

    @rule(store=STORES)
    def reopen(self, store: int) -> None:
        self.stores[store].close()

    @invariant()
    def the_bound_holds(self) -> None:
        for store in self.stores:
            assert store.used_bytes() <= MOST_BYTES

    @rule(store=STORES)
    def sweep(self, store: int) -> None:
        self.stores[store].sweep()
        assert bytes_on_disk(self.folder) <= MOST_BYTES
        assert len(files(self.folder)) <= MOST_FILES


def _run(machine: Callable[[], RuleBasedStateMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=30)
    )


def test_two_stores_do_what_a_dictionary_does() -> None:
    _run(_Exact, 25)


def test_whatever_is_done_to_the_files() -> None:
    _run(_Broken, 25)


def test_speeds_are_known_to_those_who_come_later(tmp_path: Path) -> None:
    store = PromptStore(tmp_path, MOST_BYTES, 1 << 40)
    assert store.speeds(ROOT) == Speeds()
    store.record_speeds(ROOT, Speeds(None, 1000.0))
    store.record_speeds(ROOT, Speeds(2e9, 900.0, {"4x16": 0.02}))
    store.close()
    later = PromptStore(tmp_path, MOST_BYTES, 1 << 40)
    assert later.speeds(ROOT) == Speeds(2e9, 900.0, {"4x16": 0.02})
    assert later.speeds(b"another model's.") == Speeds()
    later.close()
