"""The mailbox's file, with SQLite as it is: nothing is lost, nothing ends twice, bounds hold."""

from __future__ import annotations

import itertools
import sqlite3
import stat
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gateway.mailbox.database import VERSION, MailboxDamagedError, StoreError, TakenError
from gateway.mailbox.entry import OVERHEAD_BYTES, AnswerOutcome, MailboxEntry, Retention, Status
from gateway.mailbox.store import Store
from gateway.system.refusal import Refusal

AMPLE = Retention(3600.0, 1 << 30)


def _taken(size_bytes: int) -> None:
    """There is room for everything."""


def _entry(name: str, owner: str = "", status: Status = "queued") -> MailboxEntry:
    return MailboxEntry(
        owner=owner, id=name, api="responses", model="m", status=status, created_at=1.0
    )


def _ended(entry: MailboxEntry, at: float = 10.0, status: Status = "completed") -> MailboxEntry:
    entry.status, entry.ended_at = status, at
    return entry


def _outcome(body: bytes = b"{}", events: bytes = b"") -> AnswerOutcome:
    return AnswerOutcome("completed", 200, body, events)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "mailbox.sqlite")
    assert store.open() == []
    return store


class _Life(RuleBasedStateMachine):
    """Against a dictionary, across crashes: an open is a connection that is never closed."""

    room = Retention(20.0, 12 * OVERHEAD_BYTES)

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "mailbox.sqlite"
        self.store = Store(self.path)
        self.store.open()
        self.names = itertools.count()
        self.pending: dict[str, MailboxEntry] = {}
        self.ended: dict[str, tuple[float, bytes]] = {}
        self.deaths: dict[str, int] = {}
        self.begun: set[str] = set()
        self.now = 0.0

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    @rule()
    def accept(self) -> None:
        entry = _entry(str(next(self.names)))
        try:
            self.store.add(entry, b"work", b"[]", b"queued", self.room)
        except StoreError:
            assert len(self.pending) >= 10, "there was nothing that might go"
            return
        self.pending[entry.id] = entry
        self._dropped()

    @rule(data=st.data())
    def start_attempt(self, data: st.DataObject) -> None:
        if self.pending:
            name = data.draw(st.sampled_from(sorted(self.pending)))
            assert self.store.start_attempt(self.pending[name], _taken) == (b"work", b"queued")
            self.begun.add(name)

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if self.pending:
            name = data.draw(st.sampled_from(sorted(self.pending)))
            body = f"answer {name}".encode()
            entry = _ended(self.pending.pop(name), self.now)
            assert self.store.finish(entry, _outcome(body), self.room)
            assert not self.store.finish(entry, _outcome(b"again"), self.room), "once is once"
            self.begun.discard(name)
            self.ended[name] = self.now, body
            self._dropped()

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        if known := sorted({*self.pending, *self.ended}):
            name = data.draw(st.sampled_from(known))
            assert self.store.delete(("", name))
            assert not self.store.delete(("", name))
            if (entry := self.pending.pop(name, None)) is not None:
                assert not self.store.finish(_ended(entry), _outcome(), self.room)
            self.ended.pop(name, None)
            self.begun.discard(name)

    @rule(seconds=st.integers(0, 15))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.store.expire(self.room, self.now)
        self.ended = {
            name: (ended_at, body)
            for name, (ended_at, body) in self.ended.items()
            if ended_at > self.room.expires_before(self.now)
        }

    @rule()
    def crash(self) -> None:
        self.store = Store(self.path)
        found = self.store.open()
        assert {mailbox_entry.id for mailbox_entry in found} == self.pending.keys()
        assert [int(mailbox_entry.id) for mailbox_entry in found] == sorted(
            int(mailbox_entry.id) for mailbox_entry in found
        )
        for mailbox_entry in found:
            expected = self.deaths.get(mailbox_entry.id, 0) + (mailbox_entry.id in self.begun)
            assert mailbox_entry.deaths == expected
            self.deaths[mailbox_entry.id] = expected
            self.pending[mailbox_entry.id] = mailbox_entry
        self.begun.clear()

    @invariant()
    def what_ended_is_there(self) -> None:
        for name, (_, body) in self.ended.items():
            found = self.store.find(("", name), True, True, _taken)
            assert found is not None
            assert (found.entry.status, found.body) == ("completed", body)
        for name in self.pending:
            found = self.store.find(("", name), True, True, _taken)
            assert found is not None
            assert found.entry.pending
        assert self.store.held_bytes <= max(
            self.room.size_bytes, len(self.pending) * 2 * OVERHEAD_BYTES
        )

    def _dropped(self) -> None:
        """The oldest make room, and nobody else does."""
        gone = [
            name for name in self.ended if self.store.find(("", name), True, True, _taken) is None
        ]
        left = [ended_at for name, (ended_at, _) in self.ended.items() if name not in gone]
        assert all(self.ended[name][0] <= min(left, default=self.now) for name in gone)
        for name in gone:
            del self.ended[name]


def test_nothing_is_lost_and_nothing_ends_twice() -> None:
    run_state_machine_as_test(_Life, settings=settings(max_examples=15, stateful_step_count=25))


def test_contents_come_back_as_they_were(store: Store) -> None:
    entry = _entry("r", owner="me")
    entry.background = entry.streams = True
    store.add(entry, b"work", b'["items"]', b"queued", AMPLE)
    store.finish(_ended(entry), _outcome(b"answer", b"events"), AMPLE)
    found = store.find(("me", "r"), True, True, _taken)
    assert found is not None
    assert (found.body, found.items, found.events) == (b"answer", b'["items"]', b"events")
    assert (found.entry.background, found.entry.streams) == (True, True)


def test_unpacked_bytes_are_counted_in_time(store: Store) -> None:
    """Of 64 KB on the disk there would be 64 MB, for whoever asks."""
    entry = _entry("r")
    store.add(entry, b"w" * (64 << 20), b" " * (64 << 20), b"queued" * 1000, AMPLE)
    assert store.held_bytes < 1 << 20
    counted: list[int] = []

    def count(size_bytes: int) -> None:
        counted.append(size_bytes)
        if sum(counted) > 4 << 20:
            raise Refusal("overloaded", "too much")

    for read in (
        lambda: store.find(entry.name, True, False, count),
        lambda: store.start_attempt(entry, count),
    ):
        counted.clear()
        with pytest.raises(Refusal):
            read()
        assert sum(counted) <= 5 << 20, "not all of it was made"
    counted.clear()
    assert store.find(entry.name, False, False, count) is not None
    store.entries("", "responses", None, 9, count, newest_first=False)
    assert counted == [6000, 6000]


def test_each_owner_has_names_of_its_own(store: Store) -> None:
    for owner in ("me", "you"):
        store.put(_ended(_entry("r", owner)), _outcome(owner.encode()), b"", AMPLE)
    found = store.find(("you", "r"), True, True, _taken)
    assert found is not None
    assert found.body == b"you"
    ((_, body),) = store.entries("you", "responses", None, 9, _taken, newest_first=True)
    assert body == b"you"
    assert store.find(("", "r"), True, True, _taken) is None
    with pytest.raises(TakenError):
        store.put(_ended(_entry("r", "me")), _outcome(), b"", AMPLE)


def test_owner_with_fewer_bytes_loses_no_answer(store: Store) -> None:
    room = Retention(3600.0, 20 * OVERHEAD_BYTES)

    def held(owner: str) -> list[str]:
        page = store.entries(owner, "responses", None, 99, _taken, newest_first=False)
        return [entry.id for entry, _ in page]

    for number in range(3):
        store.put(_ended(_entry(f"small{number}", "small"), 1.0), _outcome(b""), b"", room)
    for number in range(40):
        store.put(_ended(_entry(f"large{number}", "large"), 2.0), _outcome(b""), b"", room)
    assert held("small") == ["small0", "small1", "small2"], "though they are the oldest"
    assert held("large")[-1] == "large39"
    # Who comes later finds room for as much as others have.
    for number in range(5):
        store.put(_ended(_entry(f"late{number}", "late"), 3.0), _outcome(b""), b"", room)
    assert (len(held("small")), len(held("late"))) == (3, 5)
    store.expire(Retention(3600.0, 8 * OVERHEAD_BYTES), 4.0)
    assert len(held("large")) <= 3
    assert len(held("small")) >= 2


def test_waiting_answers_leave_room_for_others(store: Store) -> None:
    """What isn't made yet can't go: all of the room would be somebody's who asks for much."""
    room = Retention(3600.0, 40 * OVERHEAD_BYTES)

    def fill() -> None:
        for number in range(40):
            store.add(_entry(str(number), "greedy"), b"", b"", b"", room)

    with pytest.raises(StoreError, match=r"its share of mailbox\.size"):
        fill()
    for number in range(5):
        store.add(_entry(str(number), "modest"), b"", b"", b"", room)
        store.put(_ended(_entry(f"there{number}", "modest")), _outcome(b""), b"", room)


def test_an_answer_takes_the_place_of_its_request(store: Store, tmp_path: Path) -> None:
    """What the request took counts no more: nobody else's answer goes for it."""
    room = Retention(3600.0, 2 * OVERHEAD_BYTES + 100)
    store.put(_ended(_entry("there")), _outcome(b"a"), b"", room)
    waiting = _entry("waiting")
    store.add(waiting, b"work", b"", b"queued", room)
    assert store.finish(_ended(waiting), _outcome(b"x" * 40), room)
    assert store.find(("", "there"), False, False, _taken) is not None
    held_bytes = store.held_bytes
    assert 2 * OVERHEAD_BYTES < held_bytes <= room.size_bytes
    store.close()
    again = Store(tmp_path / "mailbox.sqlite")
    again.open()
    assert again.held_bytes == held_bytes


def test_a_page_goes_on_behind_an_answer_of_its_own_owner(store: Store) -> None:
    """Ids are one owner's: another may have the same ones, in another order."""
    for owner, names in (("me", "ab"), ("you", "xba"), ("me", "cd")):
        for name in names:
            store.put(_ended(_entry(name, owner)), _outcome(), b"", AMPLE)

    def listed(owner: str, after: str, *, newest_first: bool) -> str:
        page = store.entries(owner, "responses", after, 9, _taken, newest_first=newest_first)
        return "".join(entry.id for entry, _ in page)

    assert listed("me", "a", newest_first=False) == "bcd"
    assert listed("me", "c", newest_first=True) == "ba"
    assert listed("you", "b", newest_first=False) == "a"
    assert listed("me", "x", newest_first=False) == "", "nothing of hers is behind his"
    assert listed("me", "x", newest_first=True) == ""


def test_pages_of_entries(store: Store) -> None:
    for name in "abcd":
        store.put(_ended(_entry(name)), _outcome(), b"", AMPLE)

    def listed(after: str | None, *, newest_first: bool) -> str:
        page = store.entries("", "responses", after, 2, _taken, newest_first=newest_first)
        return "".join(entry.id for entry, _ in page)

    assert (listed(None, newest_first=False), listed("b", newest_first=False)) == ("ab", "cd")
    assert (listed(None, newest_first=True), listed("c", newest_first=True)) == ("dc", "ba")
    assert store.entries("", "chat", None, 9, _taken, newest_first=False) == []


def test_answer_without_room_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match=r"more than mailbox\.size"):
        store.add(_entry("r"), b"", b"", b"", Retention(3600.0, OVERHEAD_BYTES))
    assert store.held_bytes == 0


def test_files_have_narrow_rights(store: Store, tmp_path: Path) -> None:
    store.put(_ended(_entry("r")), _outcome(), b"", AMPLE)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert "mailbox.sqlite-wal" in modes
    assert set(modes.values()) == {0o600}


def test_expired_answers_leave_disk(store: Store, tmp_path: Path) -> None:
    secret = b"a secret" * 50_000
    store.put(_ended(_entry("r")), _outcome(secret), b"", AMPLE)
    store.expire(AMPLE, 10.0 + AMPLE.keep_s)
    store.close()
    assert all(b"a secret" not in path.read_bytes() for path in tmp_path.iterdir())
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < len(secret)


def test_a_damaged_file_is_put_aside(store: Store, tmp_path: Path) -> None:
    store.put(_ended(_entry("r")), _outcome(b"x" * 100_000), b"", AMPLE)
    store.close()
    path = tmp_path / "mailbox.sqlite"
    path.write_bytes(b"no database at all" * 1000)
    with pytest.raises(MailboxDamagedError, match="put aside"):
        store.open()
    assert store.aside.read_bytes().startswith(b"no database")
    assert store.open() == []
    store.put(_ended(_entry("r")), _outcome(), b"", AMPLE)


def test_damage_is_noticed_while_it_is_open(store: Store, tmp_path: Path) -> None:
    for number in range(50):
        store.put(_ended(_entry(str(number))), _outcome(b"x" * 10_000), b"", AMPLE)
    store.close()
    path = tmp_path / "mailbox.sqlite"
    data = bytearray(path.read_bytes())
    data[8192:] = b"\xff" * (len(data) - 8192)
    path.write_bytes(data)

    def read_all() -> None:
        store.open()
        for number in range(50):
            store.find(("", str(number)), True, True, _taken)

    with pytest.raises(MailboxDamagedError):
        read_all()
    assert store.open() == []


def test_a_newer_file_stays_as_it_is(store: Store, tmp_path: Path) -> None:
    store.close()
    path = tmp_path / "mailbox.sqlite"
    with sqlite3.connect(path) as sql:
        sql.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer Bulkhead"):
        store.open()
    assert path.read_bytes() == before


def test_a_database_of_somebody_else(tmp_path: Path) -> None:
    path = tmp_path / "mailbox.sqlite"
    with sqlite3.connect(path) as sql:
        sql.execute("CREATE TABLE theirs (x)")
    sql.close()
    store = Store(path)
    with pytest.raises(MailboxDamagedError, match="other tables"):
        store.open()
    assert store.open() == []


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_something_else_where_the_file_belongs(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "mailbox.sqlite"
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="can't be opened"):
        Store(path).open()
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk(store: Store) -> None:
    entry = _entry("r")
    store.add(entry, b"work", b"", b"queued", AMPLE)
    # SQLite's own bound is answered as a disk's is.
    (pages,) = store.sql.execute("PRAGMA page_count").fetchone()
    store.sql.execute(f"PRAGMA max_page_count = {pages}").fetchone()
    with pytest.raises(StoreError, match="full"):
        store.add(_entry("other"), b"work", b"", b"x" * 1_000_000, AMPLE)
    with pytest.raises(StoreError, match="full"):
        store.finish(_ended(entry), _outcome(b"x" * 1_000_000), AMPLE)
    store.sql.execute("PRAGMA max_page_count = 1000000").fetchone()
    assert store.finish(_ended(entry), _outcome(b"answer"), AMPLE)


def test_pending_answers_are_selected_by_name(store: Store) -> None:
    for name in "abcd":
        store.add(_entry(name), b"work", b"[]", b"{}", AMPLE)
    store.finish(_ended(_entry("b")), _outcome(), AMPLE)
    assert [entry.id for entry in store.pending([("", "c"), ("", "b"), ("", "a")])] == ["a", "c"]


def test_an_answer_counts_with_the_items_that_stay_with_it(store: Store) -> None:
    for name, items in (("short", b"[]"), ("long", bytes(range(256)) * 9)):
        before_bytes = store.held_bytes
        store.add(_entry(name), b"work", items, b"{}", AMPLE)
        store.finish(_ended(_entry(name)), _outcome(b"{}"), AMPLE)
        taken_bytes = store.held_bytes - before_bytes
        assert taken_bytes == OVERHEAD_BYTES + 2 + len(zlib.compress(items, 1))


def test_the_largest_holder_gives_until_another_holds_more(store: Store) -> None:
    """One after the other, as each answer that goes makes its owner's share smaller."""
    for owner, names in (("many", "abcd"), ("few", "efg")):
        for ended_at, name in enumerate(names):
            store.put(_ended(_entry(name, owner), float(ended_at)), _outcome(), b"[]", AMPLE)
    size_bytes = store.held_bytes // 7
    store.expire(Retention(3600.0, 4 * size_bytes), now=10.0)
    left = {
        owner: [
            entry.id
            for entry, _ in store.entries(owner, "responses", None, 9, _taken, newest_first=False)
        ]
        for owner in ("many", "few")
    }
    assert left == {"many": ["c", "d"], "few": ["f", "g"]}


def test_a_byte_too_many_costs_the_oldest_answer(store: Store) -> None:
    for ended_at, name in enumerate("abc"):
        store.put(_ended(_entry(name), float(ended_at)), _outcome(), b"[]", AMPLE)
    for size_bytes, oldest in ((store.held_bytes, "a"), (store.held_bytes - 1, "b")):
        store.expire(Retention(3600.0, size_bytes), now=10.0)
        ((entry, _),) = store.entries("", "responses", None, 1, _taken, newest_first=False)
        assert entry.id == oldest
