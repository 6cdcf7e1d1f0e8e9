"""Blocks of computed prompts on disk, for all processes that share a folder."""

from __future__ import annotations

import errno
import functools
import logging
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

from protocol.prompt_store.home import Home, UntrustedError, drop, remove_set_aside, sweep
from protocol.prompt_store.index import Bounds, Speeds, Transaction, is_damage
from protocol.prompt_store.payloads import KEY_BYTES, AlteredError, Entry, UnfitError, disk_bytes

logger = logging.getLogger(__name__)

Buffer: TypeAlias = bytes | bytearray | memoryview
T = TypeVar("T")

# Small models have small blocks, so the number of files is bounded too. With so many rows of 256
# tokens the index takes about 250 MB.
MOST_FILES: Final = 200_000
# So many files are removed in one transaction, while other processes can't write.
_BATCH: Final = 64
# A block that needs more batches of evictions isn't stored.
_MOST_BATCHES: Final = 16
_REST_S: Final = 60.0
_REOPEN_S: Final = 5.0
_OPENING_S: Final = 5.0
_SWEEP_S: Final = 10.0
# So many marks of use may wait until no other process writes. If there are more, the oldest are
# lost.
_MOST_MARKS: Final = 10_000
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_FAILURES: Final = (OSError, sqlite3.Error, UnicodeDecodeError)


class PromptStore:
    """A tree of blocks, each with a payload, bounded in bytes. The least recently used block is
    evicted first, but never before the blocks that follow it.

    Several processes may use one folder, and several threads one store. A process may be killed at
    any moment. A failure of the disk or the folder costs only stored prompts: the failure is
    logged, once for each kind, and methods find and write nothing.

    Every method waits for the disk, and up to some seconds for other processes. So call no method
    on an event loop, or between two steps of an engine. The first call opens the files.
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
        """`folder` may hold other files too. Its mode becomes 0700.

        The bounds hold for all processes together. They count files in whole blocks of the disk,
        without the index. The store that was opened last sets the bounds, and evicts the blocks
        beyond them. At most `most_bytes_per_hour` are written in any hour, even if the files are
        removed again. `clock` gives seconds since the epoch.
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
        """Why the folder can't be used, in words for an operator; None if it can."""
        self._attempt(lambda _: None, None)
        return self._obstacle

    def children(self, parent: bytes) -> list[Entry]:
        """The blocks that follow a block or a root, in no particular order."""
        return self._attempt(lambda home: home.index.children(parent), [])

    def has(self, key: bytes) -> bool:
        """Whether the index has the block. The block's file isn't looked at."""
        return self._attempt(lambda home: home.index.has(key), False)

    def read(self, key: bytes) -> bytes | None:
        """The payload as it was written; None: there is none. The call counts as use of the block
        and its ancestors. A damaged block is dropped and logged.
        """
        return self._attempt(lambda home: self._read(home, key), None)

    def write(self, entry: Entry, parts: Sequence[Buffer], owner: str) -> bool:
        """Store a block whose payload is these parts, one behind the other, for the model `owner`.

        Other blocks are evicted first if need be, but never the block's parent. Return False if the
        block is stored already, doesn't fit, would exceed the bytes of this hour, or can't be
        written. After a full disk nothing is written for a minute.

        Raises:
            ValueError: the entry doesn't describe this payload, or has keys of a wrong length.
        """
        views = [memoryview(part).cast("B") for part in parts]
        if sum(view.nbytes for view in views) != entry.payload_bytes:
            raise ValueError("the payload's length isn't the entry's")
        if not len(entry.key) == len(entry.parent) == KEY_BYTES or entry.key == entry.parent:
            raise ValueError(f"the keys must be two different ones of {KEY_BYTES} bytes")
        return self._attempt(lambda home: self._write(home, entry, views, owner), False)

    def quarantine(self, keys: Sequence[bytes]) -> int:
        """Let these blocks and all that follow them not be found any more, by any process. Their
        files stay until they are evicted or cleared. Returns how many blocks there were.
        """
        return self._attempt(lambda home: self._quarantine(home, keys), 0)

    def prove(self, owner: str, after: int, most_bytes: int) -> StoredProof:
        """Compare blocks of an owner with their checksums: those behind the number `after`, up to
        about `most_bytes`. This counts as no use of the blocks.
        """
        proof = StoredProof(None, 0, [])
        return self._attempt(lambda home: self._prove(home, owner, after, most_bytes), proof)

    def speeds(self, model: bytes) -> Speeds:
        """The speeds that a worker recorded last for this model."""
        return self._attempt(lambda home: home.index.speeds(model), Speeds())

    def record_speeds(self, model: bytes, measured: Speeds) -> None:
        """Store the speeds that a worker has measured, for later workers."""
        self._attempt(lambda home: self._record_speeds(home, model, measured), None)

    def used_bytes(self, owner: str | None = None) -> int:
        """The bytes on disk of one owner, or of all owners."""
        owners = self.owners()
        return sum(owners.values()) if owner is None else owners.get(owner, 0)

    def owners(self) -> dict[str, int]:
        """The bytes on disk of every owner that has blocks."""
        return self._attempt(lambda home: home.index.owners(), {})

    def clear(self, owner: str | None = None) -> int:
        """Remove all blocks of one owner, or of all owners, that were stored before the call.
        Returns how many bytes on disk were freed.

        A block that two owners wrote belongs to the first owner. With very many files on a slow
        disk the call takes minutes.
        """
        freed = _FreedBytes()
        self._attempt(lambda home: self._clear(home, owner, freed), None)
        return freed.disk_bytes

    def sweep(self) -> int:
        """Remove the leftovers of killed processes: files without a row, and rows without a file.
        Returns how many bytes on disk were freed. The sweep takes about 10 s at most.

        Only one process may sweep at a time. Other processes may use the store meanwhile.
        """
        freed = _FreedBytes()
        self._attempt(lambda home: self._sweep(home, freed), None)
        return freed.disk_bytes

    def close(self) -> None:
        """Close the files. The next call opens them again."""
        with self._opening:
            self._let_go()

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
            # Meanwhile the block may have been evicted, and written anew.
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
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if is_damage(error):
                raise
            # The mark is lost, but the payload has been read.
            self._failed(error, home)
            return
        if marked:
            with self._marking:
                for key in keys:
                    self._marks.pop(key, None)

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
            # Other processes may have written meanwhile.
            if transaction.has(entry.key) or not self._fits(transaction, needed):
                return False
            transaction.undo_by(lambda: home.payloads.remove(entry.key))
            home.payloads.place(unfinished, entry.key)
            transaction.add(entry, owner, needed)
        return True

    def _quarantine(self, home: Home, keys: Sequence[bytes]) -> int:
        going, count = list(keys), 0
        while going:
            with home.index.transaction() as transaction:
                for key in (going.pop() for _ in range(min(_BATCH, len(going)))):
                    # Under another key the block's place is free for one that is computed anew.
                    new_key = secrets.token_bytes(KEY_BYTES)
                    if transaction.quarantine(key, new_key):
                        transaction.undo_by(functools.partial(home.payloads.rename, new_key, key))
                        home.payloads.rename(key, new_key)
                        count += 1
                    going += transaction.children(key)
        return count

    def _prove(self, home: Home, owner: str, after: int, most_bytes: int) -> StoredProof:
        numbered = home.index.numbered(owner, after, _BATCH)
        blocks, wrong, last = 0, list[bytes](), None
        for number, entry in numbered:
            last = number
            most_bytes -= entry.payload_bytes
            try:
                home.payloads.read(entry)
            except AlteredError:
                wrong.append(entry.key)
            except UnfitError:
                # The block is gone, or its writer was killed. A request would drop it.
                continue
            blocks += 1
            if most_bytes <= 0:
                break
        return StoredProof(last, blocks, wrong)

    def _record_speeds(self, home: Home, model: bytes, measured: Speeds) -> None:
        if not self._rests():
            with home.index.transaction() as transaction:
                transaction.set_speeds(model, measured)

    def _make_room(self, home: Home, entry: Entry, needed: int) -> bool:
        """Evict blocks until this block fits. If it may be written, count its bytes as written, and
        return True.
        """
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
        """Evict blocks until `needed` bytes fit, a batch at most. Return whether a block was
        evicted.
        """
        for count in range(_BATCH):
            if self._fits(transaction, needed):
                return count > 0
            victim = transaction.oldest_leaf(spared)
            if victim is None:
                return count > 0
            home.payloads.remove(victim.key)
            transaction.remove(victim.key)
        return True

    def _clear(self, home: Home, owner: str | None, freed: _FreedBytes) -> None:
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

    def _sweep(self, home: Home, freed: _FreedBytes) -> None:
        until = time.monotonic() + _SWEEP_S
        remove_set_aside(self._folder, until)
        freed.disk_bytes += sweep(home, until)

    # Opening and failing

    def _attempt(self, work: Callable[[Home], T], otherwise: T) -> T:
        """The result of `work` with the open store; `otherwise` if two attempts fail."""
        for may_retry in (True, False):
            home = None
            try:
                home = self._open()
                return otherwise if home is None else work(home)
            except (*_FAILURES, UntrustedError, MemoryError) as error:
                if not (self._failed(error, home) and may_retry):
                    break
        return otherwise

    def _failed(self, error: Exception, home: Home | None) -> bool:
        """Log a failure. Return whether another attempt may succeed."""
        if isinstance(error, sqlite3.ProgrammingError):
            # Another thread has closed the index, since it was damaged or moved away.
            return True
        code = getattr(error, "sqlite_errorcode", getattr(error, "errno", None))
        kind = f"{type(error).__name__} {code}"
        self._log(kind, "An operation on the prompts stored in %s failed: %s.", self._folder, error)
        if code in _FULL if isinstance(error, OSError) else code == sqlite3.SQLITE_FULL:
            self._full_at = self._clock()
        if home is None or not is_damage(error):
            return False
        try:
            drop(self._folder, home.index)
        except OSError as obstacle:
            self._failed(obstacle, None)
            return False
        return True

    def _open(self) -> Home | None:
        """The open store; None: the store couldn't be opened a moment ago, or another thread is
        opening it.

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
            except (UntrustedError, *_FAILURES) as error:
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
        """Evict all blocks beyond the bounds."""
        try:
            going = True
            while going:
                with home.index.transaction() as transaction:
                    transaction.set_bounds(self._bounds)
                    going = self._evict(home, transaction, 0, None)
            self._obeyed = True
        except _FAILURES as error:
            if is_damage(error):
                raise
            # Blocks can be read, although those beyond the bounds were not evicted.
            self._failed(error, None)

    def _let_go(self) -> None:
        if self._home is not None:
            self._home.index.close()
            self._home = None

    def _rests(self) -> bool:
        return self._since(self._full_at) < _REST_S

    def _since(self, then: float | None) -> float:
        """Seconds since `then`. Infinity if `then` is None, or if the clock was set back."""
        passed = inf if then is None else self._clock() - then
        return passed if passed >= 0 else inf

    def _log(self, kind: str, text: str, *values: object) -> None:
        """Log a warning. Later warnings of its kind, which may be thousands, are only logged for
        debugging.
        """
        level = logging.DEBUG if kind in self._logged else logging.WARNING
        self._logged.add(kind)
        logger.log(level, text, *values)


class StoredProof(NamedTuple):
    """So many `blocks` were compared with their checksums, up to the block with `last_number`
    (None: there was none), and those with the keys `wrong` differ.
    """

    last_number: int | None
    blocks: int
    wrong: list[bytes]


class _FreedBytes:
    """A count of freed bytes. After a failure it has the bytes that were freed before."""

    def __init__(self) -> None:
        self.disk_bytes = 0
