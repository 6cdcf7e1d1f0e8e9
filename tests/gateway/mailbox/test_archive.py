"""The file from the event loop: what is wrong with it is reason once, and nobody waits for ever."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.mailbox.archive import Archive
from gateway.mailbox.entry import AnswerOutcome, MailboxEntry, Retention
from gateway.system.events import EventLog
from gateway.system.refusal import Refusal

AMPLE = Retention(3600.0, 1 << 30)


def _entry(name: str = "r") -> MailboxEntry:
    return MailboxEntry(
        owner="", id=name, api="chat", model="m", status="completed", created_at=1.0, ended_at=1.0
    )


def _taken(size_bytes: int) -> None:
    """There is room for everything."""


@pytest.fixture
def events() -> EventLog:
    return EventLog()


@pytest.fixture
async def archive(tmp_path: Path, events: EventLog) -> AsyncIterator[Archive]:
    archive = Archive(tmp_path / "mailbox.sqlite", events)
    yield archive
    await archive.close()


def _reasons(events: EventLog) -> list[str]:
    return [event.fields["reason"] for event in events.recent(9) if event.kind == "mailbox"]


async def _put(archive: Archive, name: str, body: bytes = b"{}") -> None:
    outcome = AnswerOutcome("completed", 200, body)
    await archive.write(archive.store.put, _entry(name), outcome, b"", AMPLE)


async def test_written_answer_is_read(archive: Archive, events: EventLog) -> None:
    await archive.open()
    await _put(archive, "r")
    found = await archive.read(archive.store.find, ("", "r"), False, False, _taken)
    assert found is not None
    with pytest.raises(Refusal) as taken:
        await _put(archive, "r")
    assert (taken.value.status, taken.value.param) == (400, "X-Request-Id")
    assert (archive.trouble, archive.failure, _reasons(events)) == (None, None, [])


async def test_newer_file_is_reported_once(
    archive: Archive, events: EventLog, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "mailbox.sqlite") as sql:
        sql.execute("PRAGMA user_version = 99")
    sql.close()
    for _ in range(3):
        assert await archive.open() == []
    with pytest.raises(Refusal, match="newer Bulkhead") as refused:
        await _put(archive, "r")
    assert (refused.value.code, refused.value.status) == ("storage_unavailable", 503)
    assert len(_reasons(events)) == 1
    # Somebody has moved it away.
    (tmp_path / "mailbox.sqlite").unlink()
    await archive.open()
    await _put(archive, "r")
    assert archive.trouble is None


async def test_a_damaged_file_is_replaced_at_once(
    archive: Archive, events: EventLog, tmp_path: Path
) -> None:
    (tmp_path / "mailbox.sqlite").write_bytes(b"no database" * 1000)
    assert await archive.open() == []
    await _put(archive, "r")
    assert archive.renewals == 1
    (reason,) = _reasons(events)
    assert "put aside" in reason


async def test_full_disk_is_reported_until_it_has_room(archive: Archive, events: EventLog) -> None:
    await archive.open()
    sql = archive.store.sql
    (pages,) = sql.execute("PRAGMA page_count").fetchone()
    sql.execute(f"PRAGMA max_page_count = {pages}").fetchone()
    for name in ("a", "b"):
        with pytest.raises(Refusal, match="full"):
            await _put(archive, name, b"x" * 1_000_000)
    assert archive.trouble is None
    assert archive.failure is not None
    assert "full" in archive.failure
    assert len(_reasons(events)) == 1
    sql.execute("PRAGMA max_page_count = 1000000").fetchone()
    await _put(archive, "a", b"x" * 1_000_000)
    assert archive.failure is None


def _remove_all(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


LOG = "mailbox.sqlite-wal"
ACCIDENTS: dict[str, Callable[[Path], None]] = {
    "removed": lambda folder: (folder / "mailbox.sqlite").unlink(),
    "replaced": lambda folder: (folder / "empty").replace(folder / "mailbox.sqlite"),
    "all removed": _remove_all,
    "emptied": lambda folder: os.truncate(folder / "mailbox.sqlite", 0),
    "cut in its head": lambda folder: os.truncate(folder / "mailbox.sqlite", 50),
    "cut off": lambda folder: os.truncate(folder / "mailbox.sqlite", 8192),
    "without its log": lambda folder: (folder / LOG).unlink(),
    "without what its log had": lambda folder: os.truncate(folder / LOG, 0),
    "without the end of its log": lambda folder: os.truncate(
        folder / LOG, (folder / LOG).stat().st_size // 2
    ),
}


@pytest.mark.parametrize("accident", ACCIDENTS)
async def test_answers_stored_after_accident_survive_restart(
    archive: Archive, events: EventLog, tmp_path: Path, accident: str
) -> None:
    await archive.open()
    # More than SQLite leaves in its log.
    for number in range(30):
        await _put(archive, f"before{number}", os.urandom(300_000))
    (tmp_path / "empty").touch()
    ACCIDENTS[accident](tmp_path)
    await _put(archive, "after", b"stored")
    assert archive.trouble is None
    (reason,) = _reasons(events)
    assert str(tmp_path / "mailbox.sqlite") in reason
    # As another process would find it, whatever becomes of this one.
    later = Archive(tmp_path / "mailbox.sqlite", EventLog())
    await later.open()
    found = await later.read(later.store.find, ("", "after"), False, False, _taken)
    assert found is not None
    assert found.body == b"stored"
    await later.close()


async def test_a_log_that_others_have_emptied_costs_nothing(
    archive: Archive, tmp_path: Path
) -> None:
    """As a backup does; it has written it into the file."""
    await archive.open()
    await _put(archive, "before")
    with sqlite3.connect(tmp_path / "mailbox.sqlite") as sql:
        sql.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    sql.close()
    for name in ("before", "unknown"):
        found = await archive.read(archive.store.find, ("", name), False, False, _taken)
        assert (found is not None) == (name == "before")
    assert archive.trouble is None


async def test_a_file_that_shrinks_by_itself_is_no_accident(
    archive: Archive, events: EventLog, tmp_path: Path
) -> None:
    await archive.open()
    for number in range(30):
        await _put(archive, str(number), os.urandom(1_000_000))
    long = (tmp_path / "mailbox.sqlite").stat().st_size
    for _ in range(20):
        await archive.read(archive.store.expire, Retention(1.0, 1 << 30), 1e9)
        await _put(archive, "small")
        await archive.read(archive.store.delete, ("", "small"))
    assert (tmp_path / "mailbox.sqlite").stat().st_size < long
    assert _reasons(events) == []
