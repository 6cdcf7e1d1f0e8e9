"""The index of the stored blocks: a database that all processes share.

Files of blocks come and go only within a write transaction, which excludes all other processes. So
a row and its file come and go together, unless a process is killed in between.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec

from protocol.prompt_store.payloads import KEY_BYTES, Entry

# "BHPC".
_APPLICATION_ID: Final = 0x42485043
# Stores of version 3 and below may have blocks that were computed on a wrong cache: see
# `worker.system.memory`.
_SCHEMA_VERSION: Final = 4
_BUSY_S: Final = 2.0
# SQLite cuts a longer log back to this size.
_LOG_BYTES: Final = 4 << 20
_MINUTES: Final = 60
# So many pages are given back at once, while other processes can't write.
_PAGES: Final = 1000

# `used` is the tick of a block's last reading or writing. Only leaves, blocks without children, are
# evicted. A leaf that is removed hands its last use on to its parent, so that the use of a block
# counts as use of its ancestors.
_SCHEMA: Final = """
CREATE TABLE block (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key BLOB NOT NULL UNIQUE,
    parent BLOB NOT NULL,
    kind TEXT NOT NULL,
    payload_bytes INTEGER NOT NULL,
    disk_bytes INTEGER NOT NULL,
    owner TEXT NOT NULL,
    used INTEGER NOT NULL,
    children INTEGER NOT NULL,
    token_ids BLOB NOT NULL
);
CREATE INDEX block_parent ON block (parent);
CREATE INDEX block_owner ON block (owner);
CREATE INDEX block_leaf ON block (used) WHERE children = 0;
CREATE TABLE owner (
    name TEXT PRIMARY KEY, disk_bytes INTEGER NOT NULL, files INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE minute (number INTEGER PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE TABLE speed (
    model BLOB PRIMARY KEY, read_bytes_per_s REAL, prefill_tokens_per_s REAL,
    step_seconds BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE common (
    most_bytes INTEGER NOT NULL, most_bytes_per_hour INTEGER NOT NULL, tick INTEGER NOT NULL
);
INSERT INTO common VALUES (0, 0, 0);
CREATE TRIGGER block_comes AFTER INSERT ON block BEGIN
    UPDATE block SET children = children + 1 WHERE key = NEW.parent;
    INSERT INTO owner VALUES (NEW.owner, NEW.disk_bytes, 1) ON CONFLICT (name) DO UPDATE
        SET disk_bytes = disk_bytes + NEW.disk_bytes, files = files + 1;
END;
CREATE TRIGGER block_goes AFTER DELETE ON block BEGIN
    UPDATE block SET children = children - 1, used = max(used, OLD.used) WHERE key = OLD.parent;
    UPDATE owner SET disk_bytes = disk_bytes - OLD.disk_bytes, files = files - 1
        WHERE name = OLD.owner;
    DELETE FROM owner WHERE name = OLD.owner AND files = 0;
END;
"""
# The kind of a block that is not to be found any more. Nobody knows its key.
QUARANTINED: Final = "quarantined"
_ENTRY: Final = "SELECT key, parent, token_ids, payload_bytes, kind FROM block "
# These errors say that the index is gone, is no database, or has other tables.
_DAMAGE: Final = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class DamagedError(Exception):
    """The database can't be used any more. The text says why."""


class Bounds(NamedTuple):
    """The most bytes that may be stored, and that may be written in an hour."""

    most_bytes: int
    most_bytes_per_hour: int


_Steps: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,6}x[0-9]{1,6}$")]
_Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]


class Speeds(NamedTuple):
    """The measured speeds at which a model's blocks are read and its prompts are computed; None:
    not known. `step_seconds` are the seconds of decoding steps, by rows and tokens a row ("4x16").
    """

    read_bytes_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    step_seconds: dict[str, float] = {}  # noqa: RUF012  # never changed


class Total(NamedTuple):
    disk_bytes: int
    files: int


class Victim(NamedTuple):
    key: bytes
    disk_bytes: int


def is_damage(error: Exception) -> bool:
    """Whether an error comes from a damaged database, which stays damaged."""
    if isinstance(error, UnicodeDecodeError):
        # SQLite's message quotes the damaged schema, and Python can't decode the message.
        return True
    if not isinstance(error, sqlite3.Error):
        return False
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        # Python raises OperationalError without a code for text that isn't UTF-8.
        return isinstance(error, sqlite3.OperationalError)
    return code & 0xFF in _DAMAGE or code == sqlite3.SQLITE_IOERR_SHORT_READ


class Index:
    """The database, for several threads. Reading doesn't wait for writing.

    Every method raises sqlite3.Error, or UnicodeDecodeError if the schema is damaged. `transaction`
    also raises TimeoutError.
    """

    def __init__(self, path: Path, *, new: bool) -> None:
        """Open the database, or make one.

        Raises:
            DamagedError: the file is missing, is no index, or is of another version.
            OSError, sqlite3.Error: the database can't be opened.
        """
        self._path = str(path)
        if new:
            # If SQLite made the file, its mode would follow the umask.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        self._identity = _identity(self._path)
        self._looking = threading.Lock()
        self._writing = threading.Lock()
        self._looker = _connect(self._path)
        try:
            self._writer = _connect(self._path)
        except BaseException:
            self._looker.close()
            raise
        try:
            self._prepare(new)
        except BaseException as error:
            self.close()
            if isinstance(error, Exception) and is_damage(error):
                raise DamagedError(str(error)) from error
            raise

    def _prepare(self, new: bool) -> None:
        if new:
            self._writer.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self._writer.execute("PRAGMA journal_mode = WAL")
            self._writer.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {_APPLICATION_ID};"
                f" PRAGMA user_version = {_SCHEMA_VERSION}; COMMIT;"
            )
        for pragma, expected in (
            ("application_id", _APPLICATION_ID),
            ("user_version", _SCHEMA_VERSION),
        ):
            (value,) = self._looker.execute(f"PRAGMA {pragma}").fetchone()
            if value != expected:
                raise DamagedError(f"its {pragma} is {value} instead of {expected}")
        for connection in (self._looker, self._writer):
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
            # If a table is missing, the error comes here and not later.
            connection.execute("SELECT tick FROM common").fetchone()

    def in_place(self) -> bool:
        """Whether the open file is still at the path where other processes look for it."""
        try:
            return _identity(self._path) == self._identity
        except (DamagedError, OSError):
            return False

    def close(self) -> None:
        with self._looking, self._writing:
            self._looker.close()
            self._writer.close()

    # Looking

    def children(self, parent: bytes) -> list[Entry]:
        query = _ENTRY + "WHERE parent = ? AND kind != ?"
        return [_entry(row) for row in self._look(query, parent, QUARANTINED)]

    def find(self, key: bytes) -> Entry | None:
        rows = self._look(_ENTRY + "WHERE key = ?", key)
        return _entry(rows[0]) if rows else None

    def has(self, key: bytes) -> bool:
        return bool(self._look("SELECT 1 FROM block WHERE key = ?", key))

    def owners(self) -> dict[str, int]:
        """The bytes on disk of each owner that has blocks."""
        return dict(self._look("SELECT name, disk_bytes FROM owner"))

    def speeds(self, model: bytes) -> Speeds:
        query = (
            "SELECT read_bytes_per_s, prefill_tokens_per_s, step_seconds FROM speed WHERE model = ?"
        )
        rows = self._look(query, model)
        return _measured(rows[0]) if rows else Speeds()

    def keys(self, first_byte: int) -> set[bytes]:
        """The keys that begin with this byte."""
        lowest = bytes([first_byte]) + bytes(KEY_BYTES - 1)
        highest = bytes([first_byte]) + b"\xff" * (KEY_BYTES - 1)
        rows = self._look("SELECT key FROM block WHERE key BETWEEN ? AND ?", lowest, highest)
        return {key for (key,) in rows}

    def numbered(self, owner: str, after: int, most: int) -> list[tuple[int, Entry]]:
        """The next blocks of an owner behind the number `after`, with their numbers."""
        query = (
            "SELECT number, key, parent, token_ids, payload_bytes, kind FROM block"
            " WHERE owner = ? AND number > ? AND kind != ? ORDER BY number LIMIT ?"
        )
        rows = self._look(query, owner, after, QUARANTINED, most)
        return [(row[0], _entry(row[1:])) for row in rows]

    def last_number(self) -> int:
        """The number of the block that was written last. Later blocks have higher numbers."""
        return int(self._look("SELECT coalesce(max(number), 0) FROM block")[0][0])

    def _look(self, query: str, *values: object) -> list[Any]:
        with self._looking:
            return self._looker.execute(query, values).fetchall()

    # Writing

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Begin a transaction, after a short wait for other processes and threads. An exception
        undoes the transaction.
        """
        if not self._writing.acquire(timeout=_BUSY_S):
            raise TimeoutError("another thread of this process writes")
        try:
            with _transaction(self._writer) as transaction:
                yield transaction
        finally:
            self._writing.release()

    def try_to_mark(self, keys: list[bytes]) -> bool:
        """Note a use of these blocks, in this order. Return False, and note nothing, if another
        process or thread writes now.
        """
        if not self._writing.acquire(blocking=False):
            return False
        try:
            self._writer.execute("PRAGMA busy_timeout = 0")
            try:
                with _transaction(self._writer) as transaction:
                    for key in keys:
                        transaction.mark(key)
            except sqlite3.OperationalError as error:
                if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
                    return False
                raise
            finally:
                self._writer.execute(f"PRAGMA busy_timeout = {round(_BUSY_S * 1000)}")
        finally:
            self._writing.release()
        return True

    def shrink(self) -> None:
        """Give back the space of removed rows, until another process is in the way."""
        with self._writing:
            (free,) = self._writer.execute("PRAGMA freelist_count").fetchone()
            for _ in range(0, free, _PAGES):
                self._writer.execute(f"PRAGMA incremental_vacuum({_PAGES})").fetchall()
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


class Transaction:
    """Changes to the index that are made together, while no other process or thread writes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._undoing: list[Callable[[], object]] = []

    def undo_by(self, action: Callable[[], object]) -> None:
        """If the transaction is undone, call `action` to undo a change of files. No other process
        can write before that.
        """
        self._undoing.append(action)

    def undo(self) -> None:
        for action in self._undoing:
            with contextlib.suppress(OSError):
                action()
        # After some errors SQLite has rolled back by itself.
        with contextlib.suppress(sqlite3.Error, UnicodeDecodeError):
            self._connection.execute("ROLLBACK")

    def bounds(self) -> Bounds:
        query = "SELECT most_bytes, most_bytes_per_hour FROM common"
        return Bounds(*self._connection.execute(query).fetchone())

    def set_bounds(self, bounds: Bounds) -> None:
        self._connection.execute(
            "UPDATE common SET most_bytes = ?, most_bytes_per_hour = ?", bounds
        )

    def total(self) -> Total:
        query = "SELECT coalesce(sum(disk_bytes), 0), coalesce(sum(files), 0) FROM owner"
        return Total(*self._connection.execute(query).fetchone())

    def has(self, key: bytes) -> bool:
        query = "SELECT 1 FROM block WHERE key = ?"
        return self._connection.execute(query, (key,)).fetchone() is not None

    def add(self, entry: Entry, owner: str, disk_bytes: int) -> None:
        """Add a block. Its children may be stored already."""
        self._connection.execute("UPDATE common SET tick = tick + 1")
        self._connection.execute(
            "INSERT INTO block (key, parent, token_ids, payload_bytes, kind, disk_bytes, owner,"
            " used, children) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, tick,"
            " (SELECT count(*) FROM block WHERE parent = ?1) FROM common",
            (
                entry.key,
                entry.parent,
                entry.token_ids,
                entry.payload_bytes,
                entry.kind,
                disk_bytes,
                owner,
            ),
        )

    def remove(self, key: bytes) -> bool:
        """Remove a block. Return False if there was no such block."""
        return self._connection.execute("DELETE FROM block WHERE key = ?", (key,)).rowcount > 0

    def quarantine(self, key: bytes, new_key: bytes) -> bool:
        """Give a block a key by which nobody looks. Return False if there was no such block."""
        # The children don't find the block under its new key any more.
        query = "UPDATE block SET key = ?, kind = ?, children = 0 WHERE key = ?"
        return self._connection.execute(query, (new_key, QUARANTINED, key)).rowcount > 0

    def children(self, parent: bytes) -> list[bytes]:
        """The keys of the blocks that follow a block, also if that block is gone."""
        query = "SELECT key FROM block WHERE parent = ? AND kind != ?"
        return [key for (key,) in self._connection.execute(query, (parent, QUARANTINED))]

    def mark(self, key: bytes) -> None:
        """Note that a block is used now."""
        self._connection.execute("UPDATE common SET tick = tick + 1")
        self._connection.execute(
            "UPDATE block SET used = (SELECT tick FROM common) WHERE key = ?", (key,)
        )

    def set_speeds(self, model: bytes, measured: Speeds) -> None:
        query = "INSERT OR REPLACE INTO speed VALUES (?, ?, ?, ?)"
        steps = msgspec.msgpack.encode(measured.step_seconds)
        self._connection.execute(query, (model, *measured[:2], steps))

    def oldest_leaf(self, spared: bytes | None) -> Victim | None:
        """The least recently used block of all blocks without children, except `spared`."""
        query = "SELECT key, disk_bytes FROM block WHERE children = 0 ORDER BY used LIMIT 2"
        for row in self._connection.execute(query).fetchall():
            if row[0] != spared:
                return Victim(*row)
        return None

    def some_of(self, owner: str | None, last_number: int, most: int) -> list[Victim]:
        """At most `most` blocks of an owner, or of all owners, with numbers up to `last_number`.
        The newest blocks come first, since most blocks are newer than their parents.
        """
        last = " ORDER BY number DESC LIMIT ?"
        query = "SELECT key, disk_bytes FROM block WHERE number <= ?"
        values: tuple[object, ...] = (last_number, most)
        if owner is not None:
            query, values = query + " AND owner = ?", (last_number, owner, most)
        return [Victim(*row) for row in self._connection.execute(query + last, values)]

    def written_within_an_hour(self, now: float) -> int:
        minute = int(now // 60)
        # If the clock was set back, bytes of future minutes count as written now.
        ahead = "SELECT coalesce(sum(bytes), 0) FROM minute WHERE number > ?"
        (later,) = self._connection.execute(ahead, (minute,)).fetchone()
        forgotten = (minute, minute - _MINUTES)
        self._connection.execute("DELETE FROM minute WHERE number > ? OR number < ?", forgotten)
        if later:
            self.count_written(now, later)
        query = "SELECT coalesce(sum(bytes), 0) FROM minute"
        return int(self._connection.execute(query).fetchone()[0])

    def count_written(self, now: float, written_bytes: int) -> None:
        self._connection.execute(
            "INSERT INTO minute VALUES (?, ?) ON CONFLICT (number)"
            " DO UPDATE SET bytes = bytes + excluded.bytes",
            (int(now // 60), written_bytes),
        )


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[Transaction]:
    connection.execute("BEGIN IMMEDIATE")
    transaction = Transaction(connection)
    try:
        yield transaction
        connection.execute("COMMIT")
    except BaseException:
        transaction.undo()
        raise


def _connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)


def _identity(path: str) -> tuple[int, int]:
    """Raises DamagedError or OSError."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        raise DamagedError("it is missing") from None
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise DamagedError("it is no file of this account")
    return status.st_dev, status.st_ino


def _measured(row: tuple[Any, ...]) -> Speeds:
    # A damaged page may hold anything.
    read, prefill, steps = row
    if all(figure is None or (type(figure) is float and figure > 0) for figure in (read, prefill)):
        with contextlib.suppress(msgspec.MsgspecError, TypeError):
            seconds = msgspec.msgpack.decode(steps, type=dict[_Steps, _Seconds])
            return Speeds(read, prefill, seconds)
    raise sqlite3.OperationalError("a row is damaged")


def _entry(row: tuple[Any, ...]) -> Entry:
    entry = Entry(*row)
    # A damaged page may hold anything.
    if (
        type(entry.key) is bytes
        and type(entry.parent) is bytes
        and type(entry.token_ids) is bytes
        and type(entry.payload_bytes) is int
        and type(entry.kind) is str
        and len(entry.key) == len(entry.parent) == KEY_BYTES
        and entry.payload_bytes >= 0
    ):
        return entry
    raise sqlite3.OperationalError("a row is damaged")
