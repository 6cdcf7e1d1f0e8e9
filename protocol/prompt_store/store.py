"""Blocks of computed prompts on disk, for all processes that share a folder."""

from __future__ import annotations

import errno
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from protocol.prompt_store.home import Home, UntrustedError, drop, remove_set_aside, sweep
from protocol.prompt_store.index import Bounds, Speeds, Transaction, is_damage
from protocol.prompt_store.payloads import KEY_BYTES, Entry, UnfitError, disk_bytes

logger = logging.getLogger(__name__)

Buffer: TypeAlias = bytes | bytearray | memoryview
T = TypeVar("T")

# Small models make small blocks. So many rows of 256 tokens make an index of about 250 MB.
MOST_FILES: Final = 200_000
# Other processes can't write while so many files go.
_BATCH: Final = 64
# More are not evicted for one that is written: it isn't kept then.
_MOST_BATCHES: Final = 16
_REST_S: Final = 60.0
_REOPEN_S: Final = 5.0
_OPENING_S: Final = 5.0
_SWEEP_S: Final = 10.0
# Marks of use that wait for other processes; the oldest are lost.
_MOST_MARKS: Final = 10_000
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class PromptStore:
    """A tree of blocks, each with a payload, bounded in bytes; the least recently used goes first,
    and none before what follows it.

    Several processes may use one folder, and several threads one store. The store may be killed at
    any moment. Whatever goes wrong with disk or folder costs what was stored and nothing else: it
    is logged, once for each kind, and nothing is found or written.

    Every method waits for the disk, and for other processes for up to some seconds: call none of
    them on an event loop or between two steps of an engine. Nothing is opened before the first.
    """

    def __init__(
        self,
        folder: Path,
        most_bytes: int,
        most_bytes_per_hour: int,
        *,
        most_files: int = MOST_FILES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`folder` may hold other things too; it becomes this account's alone.

        The bounds hold for files in whole blocks of the disk, without the index, and for all
        processes: the store that was opened last sets them, and what is over them goes then. At
        most `most_bytes_per_hour` are written in any hour, whatever becomes of them. `clock` gives
        seconds since the epoch.
        """
        self._folder = folder
        self._bounds = Bounds(most_bytes, most_bytes_per_hour)
        self._most_files = most_files
        self._clock = clock
        self._opening = threading.Lock()
        self._home: Home | None = None
        self._failed_at: float | None = None
        self._obstacle: str | None = None
        self._obeyed = False
        self._full_at: float | None = None
        self._marks: dict[bytes, None] = {}
        self._marking = threading.Lock()
        self._logged: set[str] = set()

    def obstacle(self) -> str | None:
        """Why the folder can't be used, for an operator to read; None if it can."""
        self._attempt(lambda _: None, None)
        return self._obstacle

    def children(self, parent: bytes) -> list[Entry]:
        """The blocks that follow this one, or a root, in no particular order."""
        return self._attempt(lambda home: home.index.children(parent), [])

    def has(self, key: bytes) -> bool:
        """Whether the block is known; its file isn't looked at."""
        return self._attempt(lambda home: home.index.has(key), False)

    def read(self, key: bytes) -> bytes | None:
        """The payload as it was written, or None. Counts as use of the block and its ancestors.

        What is not as it was written is dropped, and said so in the log.
        """
        return self._attempt(lambda home: self._read(home, key), None)

    def write(self, entry: Entry, parts: Sequence[Buffer], owner: str) -> bool:
        """Store a block whose payload is these parts, one behind the other, for the model `owner`.

        Makes room first. False, with nothing changed for the worse, if the block is there already,
        doesn't fit, comes too soon, or can't be written; after a full disk nothing is tried for a
        minute. The block's parent is never what gives way.

        Raises:
            ValueError: the entry isn't one of this payload, or has keys of a wrong length.
        """
        views = [memoryview(part).cast("B") for part in parts]
        if sum(view.nbytes for view in views) != entry.payload_bytes:
            raise ValueError("the payload's length isn't the entry's")
        if not len(entry.key) == len(entry.parent) == KEY_BYTES or entry.key == entry.parent:
            raise ValueError(f"the keys must be two different ones of {KEY_BYTES} bytes")
        return self._attempt(lambda home: self._write(home, entry, views, owner), False)

    def speeds(self, model: bytes) -> Speeds:
        """What was noted last of this model, whoever measured it."""
        return self._attempt(lambda home: home.index.speeds(model), Speeds())

    def note_speeds(self, model: bytes, measured: Speeds) -> None:
        """Keep what a worker has measured for those that come after it."""
        self._attempt(lambda home: self._note_speeds(home, model, measured), None)

    def used_bytes(self, owner: str | None = None) -> int:
        """What is stored for one owner, or for all, in bytes on disk."""
        owners = self.owners()
        return sum(owners.values()) if owner is None else owners.get(owner, 0)

    def owners(self) -> dict[str, int]:
        """The bytes on disk of every owner that has any."""
        return self._attempt(lambda home: home.index.owners(), {})

    def clear(self, owner: str | None = None) -> int:
        """Remove what was stored up to now for one owner, or for all: the bytes on disk that are
        free again.

        A payload that was written under two owners belongs to the first of them. Takes as long as
        the disk takes to remove the files: minutes where a slow one has very many.
        """
        freed = _Freed()
        self._attempt(lambda home: self._clear(home, owner, freed), None)
        return freed.disk_bytes

    def sweep(self) -> int:
        """Remove files that nothing knows of, as killed processes leave them, and rows without a
        file: the bytes on disk that are free again. Works for 10 s at most.

        For one process at a time, before the others start or beside them.
        """
        freed = _Freed()
        self._attempt(lambda home: self._sweep(home, freed), None)
        return freed.disk_bytes

    def close(self) -> None:
        """Let go of the files; the next call opens them again."""
        with self._opening:
            self._let_go()

    # What the methods do with an open store

    def _read(self, home: Home, key: bytes) -> bytes | None:
        entry = home.index.find(key)
        if entry is None:
            return None
        identity = home.payloads.identity(key)
        try:
            payload = home.payloads.read(entry)
        except UnfitError as error:
            self._drop(home, key, identity, str(error))
            return None
        self._mark(home, key)
        return payload

    def _drop(self, home: Home, key: bytes, identity: tuple[int, int] | None, why: str) -> None:
        with home.index.transaction() as transaction:
            # It may have been evicted meanwhile, and written anew.
            if home.payloads.identity(key) != identity or not transaction.remove(key):
                return
            home.payloads.remove(key)
        self._log(why, "A stored prompt is dropped: %s: %s.", home.payloads.path(key), why)

    def _mark(self, home: Home, key: bytes) -> None:
        with self._marking:
            self._marks.pop(key, None)
            self._marks[key] = None
            if len(self._marks) > _MOST_MARKS:
                del self._marks[next(iter(self._marks))]
            keys = list(self._marks)
        if self._rests():
            return
        try:
            marked = home.index.try_to_mark(keys)
        except sqlite3.Error as error:
            if is_damage(error):
                raise
            # The payload has been read all the same.
            self._failed(error, home)
            return
        if marked:
            with self._marking:
                for each in keys:
                    self._marks.pop(each, None)

    def _write(self, home: Home, entry: Entry, parts: Sequence[memoryview], owner: str) -> bool:
        needed = disk_bytes(entry.payload_bytes)
        if self._rests() or home.index.has(entry.key):
            return False
        if not self._obeyed:
            self._obey_bounds(home)
        if not self._make_room(home, entry, needed):
            return False
        with (
            home.payloads.unfinished(entry, parts) as unfinished,
            home.index.transaction() as transaction,
        ):
            # Others may have written meanwhile.
            if transaction.has(entry.key) or not self._fits(transaction, needed):
                return False
            transaction.undo_by(lambda: home.payloads.remove(entry.key))
            home.payloads.place(unfinished, entry.key)
            transaction.add(entry, owner, needed)
        return True

    def _note_speeds(self, home: Home, model: bytes, measured: Speeds) -> None:
        if not self._rests():
            with home.index.transaction() as transaction:
                transaction.set_speeds(model, measured)

    def _make_room(self, home: Home, entry: Entry, needed: int) -> bool:
        """Whether the block may be written now; counts it as written then."""
        for _ in range(_MOST_BATCHES):
            with home.index.transaction() as transaction:
                bounds = transaction.bounds()
                now = self._clock()
                written = transaction.written_within_an_hour(now)
                if (
                    needed > bounds.most_bytes
                    or written + needed > bounds.most_bytes_per_hour
                    or self._most_files < 1
                    or transaction.has(entry.key)
                ):
                    return False
                going = self._evict(home, transaction, needed, entry.parent)
                if self._fits(transaction, needed):
                    transaction.count_written(now, needed)
                    return True
                if not going:
                    return False
        return False

    def _fits(self, transaction: Transaction, needed: int) -> bool:
        total = transaction.total()
        files = total.files + (needed > 0)
        most_bytes = transaction.bounds().most_bytes
        return total.disk_bytes + needed <= most_bytes and files <= self._most_files

    def _evict(
        self, home: Home, transaction: Transaction, needed: int, spared: bytes | None
    ) -> bool:
        """Evict until so much fits, but only so many at once: whether there was anything."""
        for count in range(_BATCH):
            if self._fits(transaction, needed):
                return count > 0
            victim = transaction.oldest_leaf(spared)
            if victim is None:
                return count > 0
            home.payloads.remove(victim.key)
            transaction.remove(victim.key)
        return True

    def _clear(self, home: Home, owner: str | None, freed: _Freed) -> None:
        last_number = home.index.last_number()
        while True:
            with home.index.transaction() as transaction:
                victims = transaction.some_of(owner, last_number, _BATCH)
                for victim in victims:
                    if home.payloads.remove(victim.key):
                        freed.disk_bytes += victim.disk_bytes
                    transaction.remove(victim.key)
            if not victims:
                break
        if owner is None:
            self._sweep(home, freed)
        home.index.shrink()

    def _sweep(self, home: Home, freed: _Freed) -> None:
        until = time.monotonic() + _SWEEP_S
        remove_set_aside(self._folder, until)
        freed.disk_bytes += sweep(home, until)

    # Opening and failing

    def _attempt(self, work: Callable[[Home], T], otherwise: T) -> T:
        """What the work makes of the open store; `otherwise` if it fails, also when tried again."""
        for may_retry in (True, False):
            home = None
            try:
                home = self._open()
                return otherwise if home is None else work(home)
            except (OSError, sqlite3.Error, UntrustedError, MemoryError) as error:
                if not (self._failed(error, home) and may_retry):
                    break
        return otherwise

    def _failed(self, error: Exception, home: Home | None) -> bool:
        """Note what went wrong; whether another attempt may do better."""
        if isinstance(error, sqlite3.ProgrammingError):
            # Another thread has closed it, since it was damaged or moved away.
            return True
        code = getattr(error, "sqlite_errorcode", getattr(error, "errno", None))
        kind = f"{type(error).__name__} {code}"
        self._log(kind, "The prompts stored in %s can't be used: %s.", self._folder, error)
        if code in _FULL if isinstance(error, OSError) else code == sqlite3.SQLITE_FULL:
            self._full_at = self._clock()
        if home is None or not isinstance(error, sqlite3.Error) or not is_damage(error):
            return False
        try:
            drop(self._folder, home.index)
        except OSError as obstacle:
            self._failed(obstacle, None)
            return False
        return True

    def _open(self) -> Home | None:
        """None if it couldn't be opened just now, or by another thread.

        Raises UntrustedError, OSError or sqlite3.Error.
        """
        home = self._home
        if home is not None and home.index.in_place():
            return home
        if not self._opening.acquire(timeout=_OPENING_S):
            return None
        try:
            if self._home is not home:
                return self._home
            self._let_go()
            if self._since(self._failed_at) < _REOPEN_S:
                return None
            try:
                home = self._home = Home(self._folder)
            except (UntrustedError, OSError, sqlite3.Error) as error:
                self._failed_at, self._obstacle = self._clock(), str(error)
                raise
            self._failed_at = self._obstacle = None
            self._obeyed = False
        finally:
            self._opening.release()
        remove_set_aside(self._folder, time.monotonic() + _SWEEP_S)
        self._obey_bounds(home)
        return home

    def _obey_bounds(self, home: Home) -> None:
        """Evict what is over them, however much that is."""
        try:
            going = True
            while going:
                with home.index.transaction() as transaction:
                    transaction.set_bounds(self._bounds)
                    going = self._evict(home, transaction, 0, None)
            self._obeyed = True
        except (OSError, sqlite3.Error) as error:
            if isinstance(error, sqlite3.Error) and is_damage(error):
                raise
            # What is there can be read all the same.
            self._failed(error, None)

    def _let_go(self) -> None:
        if self._home is not None:
            self._home.index.close()
            self._home = None

    def _rests(self) -> bool:
        return self._since(self._full_at) < _REST_S

    def _since(self, then: float | None) -> float:
        """Seconds, infinitely many if the clock was set back."""
        passed = inf if then is None else self._clock() - then
        return passed if passed >= 0 else inf

    def _log(self, kind: str, text: str, *values: object) -> None:
        """A warning, but only the first of its kind: there may be thousands."""
        level = logging.DEBUG if kind in self._logged else logging.WARNING
        self._logged.add(kind)
        logger.log(level, text, *values)


class _Freed:
    """Counted while it happens: what was freed before a failure counts too."""

    def __init__(self) -> None:
        self.disk_bytes = 0
