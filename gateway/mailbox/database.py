"""The mailbox's SQLite file: its tables, its connection, and its errors."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

VERSION: Final = 1
# The longest wait for another program that has the file locked, such as a backup.
_BUSY_S: Final = 5.0
_JOURNAL_BYTES: Final = 16 << 20
_HEAD_BYTES: Final = 100
_SCHEMA: Final = """
CREATE TABLE answers (
  number INTEGER PRIMARY KEY,
  owner TEXT NOT NULL,
  id TEXT NOT NULL,
  api TEXT NOT NULL,
  model TEXT NOT NULL,
  status TEXT NOT NULL,
  created_at REAL NOT NULL,
  deadline_at REAL NOT NULL,
  ended_at REAL,
  priority INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  deaths INTEGER NOT NULL,
  background INTEGER NOT NULL,
  streams INTEGER NOT NULL,
  http_status INTEGER NOT NULL,
  body BLOB NOT NULL,
  work BLOB NOT NULL,
  items BLOB NOT NULL,
  events BLOB NOT NULL,
  bytes INTEGER NOT NULL,
  UNIQUE (owner, id)
) STRICT;
CREATE INDEX by_end ON answers (ended_at);
"""
# The index has the sizes of answers. Without it SQLite has to skip the contents of each row, which
# stand before `bytes`, and that takes long.
_INDEX: Final = """
CREATE INDEX IF NOT EXISTS by_owner ON answers (owner, ended_at, number, bytes)
"""


class StoreError(Exception):
    """The file can't be used; the text says why."""


class MailboxDamagedError(StoreError):
    """The file is damaged, is no mailbox, or is gone."""


class TakenError(StoreError):
    """The mailbox has an answer of this name already."""


class _Seen(NamedTuple):
    """The identity and the size of a file at one moment."""

    identity: tuple[int, int]
    size_bytes: int


class Database:
    """The connection to the file. A damaged file is put aside, and the next `connect` begins a new
    file. A file of a newer version stays as it is. Every call blocks, and only one call may run at
    a time.

    SQLite goes on with a file that was removed or cut off, and its writes are then lost when the
    process ends. So the file and its log are checked before and after each call.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log_path = path.with_name(f"{path.name}-wal")
        self._connection: sqlite3.Connection | None = None
        self._file: _Seen | None = None
        self._log: _Seen | None = None

    @property
    def aside(self) -> Path:
        """The path to which a damaged file is moved."""
        return self._path.with_suffix(".damaged")

    @property
    def sql(self) -> sqlite3.Connection:
        """The open connection. Raises: StoreError: the file is not open."""
        if self._connection is None:
            raise StoreError("it is not open")
        return self._connection

    def connect(self) -> None:
        """Open the file, or begin a new one.

        Raises:
            MailboxDamagedError: the file was put aside.
            StoreError: the file can't be opened, or is of a newer version.
        """
        self._make_file()
        with self.explained():
            self._open_connection()
            self._file, self._log = _look(self._path), _look(self._log_path)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Check the file before and after SQLite's calls, and turn exceptions into `StoreError`."""
        try:
            self._check_in_place()
            yield
            self._check_in_place()
        except sqlite3.IntegrityError as error:
            raise TakenError("there is one of this id already") from error
        except (sqlite3.Error, zlib.error) as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise self._damaged(str(error)) from error
            raise StoreError(f"{self._path} can't be used: {error}") from error

    def _make_file(self) -> None:
        """Make the file, if it is missing, for this account alone. SQLite gives its other files the
        same rights.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self._path, flags, 0o600)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise StoreError(f"{self._path} is no file: remove it")
                os.fchmod(descriptor, 0o600)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StoreError(f"{self._path} can't be opened: {error.strerror or error}") from error

    def _open_connection(self) -> None:
        # Calls run one at a time, but not always on the same thread.
        self._connection = sqlite3.connect(
            self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        sql = self._connection
        (version,) = sql.execute("PRAGMA user_version").fetchone()
        (tables,) = sql.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if version > VERSION:
            raise StoreError(
                f"{self._path} was written by a newer Bulkhead (version {version} of the file, "
                f"this one knows {VERSION}): update, or move the file away"
            )
        if (version == VERSION) != (tables > 0):
            raise self._damaged("it has other tables")
        # This setting must come before the first table.
        sql.execute("PRAGMA auto_vacuum = INCREMENTAL")
        sql.execute("PRAGMA journal_mode = WAL").fetchone()
        # Accepted answers survive a power failure, too.
        sql.execute("PRAGMA synchronous = FULL")
        sql.execute("PRAGMA secure_delete = ON").fetchone()
        sql.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}").fetchone()
        if version < VERSION:
            sql.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        sql.execute(_INDEX)

    def _check_in_place(self) -> None:
        """Raises: MailboxDamagedError: the file or its log is gone, replaced or cut off."""
        if self._connection is None:
            return
        file, log = _look(self._path), _look(self._log_path)
        before, log_before = self._file, self._log
        assert before is not None
        if file is None or file.identity != before.identity:
            raise self._gone("was removed or replaced")
        if file.size_bytes < before.size_bytes and file.size_bytes < self._least_bytes():
            raise self._damaged("it was cut off while it was in use")
        if log_before is not None:
            if log is None or log.identity != log_before.identity:
                raise self._gone("has lost its log")
            # SQLite itself cuts the log off at this size.
            if log.size_bytes < min(log_before.size_bytes, _JOURNAL_BYTES):
                raise self._gone("has lost part of its log")
        self._file, self._log = file, log

    def _least_bytes(self) -> int:
        """The size of the file by its own header."""
        head = _read_head(self._path)
        if len(head) < _HEAD_BYTES:
            return _HEAD_BYTES
        page_bytes = int.from_bytes(head[16:18], "big")
        # A page size of 1 stands for 65,536 (sqlite.org/fileformat2.html).
        return int.from_bytes(head[28:32], "big") * (65536 if page_bytes == 1 else page_bytes)

    def _gone(self, what: str) -> MailboxDamagedError:
        self.close()
        return MailboxDamagedError(
            f"{self._path} {what} while it was in use: the file there is opened, or a new one begun"
        )

    def _damaged(self, reason: str) -> MailboxDamagedError:
        """Put the file aside, and return an error that says so."""
        # Closing the connection writes the log into the file at this path, so the file is moved
        # before.
        with contextlib.suppress(OSError):
            self._path.replace(self.aside)
        self.close()
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        return MailboxDamagedError(
            f"{self._path} is damaged ({reason}): it is put aside as {self.aside}"
        )


def _look(path: Path) -> _Seen | None:
    """Look at a file; None: there is no file. Raises: OSError."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return _Seen((status.st_dev, status.st_ino), status.st_size)


def _read_head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES)
