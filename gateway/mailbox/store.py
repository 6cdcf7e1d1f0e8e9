"""Reads and writes of the mailbox's file. Every call blocks, and only one may run at a time."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from gateway.mailbox.database import Database, StoreError
from gateway.mailbox.entry import (
    PENDING,
    AnswerOutcome,
    Api,
    MailboxEntry,
    Name,
    Retention,
    StoredAnswer,
    charged_bytes,
    share_of_free,
)

_ENTRY: Final = ", ".join(MailboxEntry.__struct_fields__)
_IS_PENDING: Final = f"status IN {PENDING}"
_PAGES_AT_ONCE: Final = 4096
# So many bytes are unpacked before `count` counts them.
_UNPACKED_BYTES: Final = 1 << 20

# Counts bytes that are read for a request, and raises if they are too many.
CountBytes: TypeAlias = Callable[[int], None]


class Store(Database):
    """The answers in the file. Contents are compressed, except bodies, which are read most."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # The bytes of each owner's answers. Answers that another gateway makes count as they were
        # when the file was opened.
        self._held: Counter[str] = Counter()

    @property
    def held_bytes(self) -> int:
        return self._held.total()

    def open(self, elsewhere: Collection[Name] = ()) -> list[MailboxEntry]:
        """Open the file. Returns the answers that are still to be made, by age, without answers
        that are being made `elsewhere`. If another answer was in progress, one more death of the
        gateway is counted for it.

        Raises:
            MailboxDamagedError: the file is put aside; another try begins a new one.
            StoreError: the file can't be opened, or is of a newer version.
        """
        try:
            self.connect()
            with self.explained():
                held = "SELECT owner, sum(bytes) FROM answers GROUP BY owner"
                self._held = Counter(dict(self.sql.execute(held)))
                running = self.sql.execute(
                    "SELECT owner, id FROM answers WHERE status = 'in_progress'"
                ).fetchall()
                self.sql.executemany(
                    "UPDATE answers SET status = 'queued', deaths = deaths + 1 "
                    "WHERE owner = ? AND id = ?",
                    [name for name in running if name not in elsewhere],
                )
                return [entry for entry in self._pending() if entry.name not in elsewhere]
        except StoreError:
            self.close()
            raise

    def pending(self, names: Collection[Name]) -> list[MailboxEntry]:
        """The answers with these names that are still to be made, by age."""
        with self.explained():
            return [entry for entry in self._pending() if entry.name in names]

    def _pending(self) -> list[MailboxEntry]:
        columns = f"SELECT {_ENTRY} FROM answers WHERE {_IS_PENDING} ORDER BY number"
        return [_entry(row) for row in self.sql.execute(columns)]

    def add(
        self, entry: MailboxEntry, work: bytes, items: bytes, body: bytes, retention: Retention
    ) -> None:
        """Add an answer that is to be made.

        Raises:
            TakenError: the name is taken.
            StoreError: there is no room, or the file can't be written.
        """
        packed = zlib.compress(work, 1), zlib.compress(items, 1)
        with self.explained():
            self._insert(entry, 202, body, *packed, retention)

    def put(
        self, entry: MailboxEntry, outcome: AnswerOutcome, items: bytes, retention: Retention
    ) -> None:
        """Add an answer that is over. Raises: StoreError, as `add`."""
        packed = zlib.compress(items, 1)
        with self.explained():
            self._insert(entry, outcome.http_status, outcome.body, b"", packed, retention)

    def start_attempt(self, entry: MailboxEntry, count: CountBytes) -> tuple[bytes, bytes] | None:
        """Record that an answer is being made. Returns its work, and the body that it has until its
        end; None: the answer isn't to be made any more.
        """
        with self.explained():
            self.sql.execute(
                "UPDATE answers SET status = 'in_progress', attempts = ? "
                f"WHERE owner = ? AND id = ? AND {_IS_PENDING}",
                (entry.attempts, *entry.name),
            )
            row = self.sql.execute(
                f"SELECT work, body FROM answers WHERE owner = ? AND id = ? AND {_IS_PENDING}",
                entry.name,
            ).fetchone()
            return None if row is None else (_unpacked(row[0], count), row[1])

    def put_back(self, entry: MailboxEntry) -> None:
        """Record that an answer is made later, as the gateway ends in order."""
        with self.explained():
            self.sql.execute(
                "UPDATE answers SET status = 'queued' WHERE owner = ? AND id = ? "
                "AND status = 'in_progress'",
                entry.name,
            )

    def finish(self, entry: MailboxEntry, outcome: AnswerOutcome, retention: Retention) -> bool:
        """Write the outcome of an answer. Returns False if the answer was over, or is gone."""
        events = zlib.compress(outcome.events, 1) if outcome.events else b""
        with self.explained():
            row = self.sql.execute(
                "SELECT bytes, length(items) FROM answers "
                f"WHERE owner = ? AND id = ? AND {_IS_PENDING}",
                entry.name,
            ).fetchone()
            if row is None:
                return False
            before_bytes, items_bytes = row
            size = charged_bytes(outcome.body, events) + items_bytes
            # The outcome is written even without room, as the answer was accepted.
            self._make_room(entry.owner, size - before_bytes, retention)
            self.sql.execute(
                "UPDATE answers SET status = ?, ended_at = ?, http_status = ?, body = ?, "
                "work = x'', events = ?, bytes = ? WHERE owner = ? AND id = ?",
                (
                    outcome.status,
                    entry.ended_at,
                    outcome.http_status,
                    outcome.body,
                    events,
                    size,
                    *entry.name,
                ),
            )
            self._held[entry.owner] += size - before_bytes
            return True

    def find(self, name: Name, items: bool, events: bool, count: CountBytes) -> StoredAnswer | None:
        """An answer, with its items and events if these are wanted, as they may be large."""
        named = "FROM answers WHERE owner = ? AND id = ?"
        columns = f"{_ENTRY}, http_status, body"
        columns += ", items" if items else ", x''"
        columns += ", events" if events else ", x''"
        with self.explained():
            size = self.sql.execute(f"SELECT length(body) {named}", name).fetchone()
            if size is None:
                return None
            count(*size)
            row = self.sql.execute(f"SELECT {columns} {named}", name).fetchone()
            http_status, body, *packed = row[-4:]
            contents = [_unpacked(content, count) for content in packed]
            return StoredAnswer(_entry(row[:-4]), http_status, body, *contents)

    def entries(
        self,
        owner: str,
        api: Api,
        after: str | None,
        most: int,
        count: CountBytes,
        *,
        newest_first: bool,
    ) -> list[tuple[MailboxEntry, bytes]]:
        """At most `most` answers of an owner, with their bodies. With `after`, the id of an
        answer, they begin behind that answer.
        """
        order, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
        behind = ""
        arguments: list[str | int] = [owner, api]
        if after is not None:
            behind = f"AND number {beyond} (SELECT number FROM answers WHERE owner = ? AND id = ?)"
            arguments += (owner, after)
        with self.explained():
            rows = self.sql.execute(
                f"SELECT {_ENTRY}, body FROM answers WHERE owner = ? AND api = ? {behind} "
                f"ORDER BY number {order} LIMIT ?",
                (*arguments, most),
            )
            answers = []
            for row in rows:
                count(len(row[-1]))
                answers.append((_entry(row[:-1]), row[-1]))
            return answers

    def delete(self, name: Name) -> bool:
        """Delete an answer. Returns whether there was one."""
        with self.explained():
            return self._delete("WHERE owner = ? AND id = ?", *name)

    def expire(self, retention: Retention, now: float) -> None:
        """Remove answers that are old enough, or that exceed the bound of bytes."""
        with self.explained():
            self._delete("WHERE ended_at <= ?", retention.expires_before(now))
            self._make_room(None, 0, retention)
            # A script runs this statement to its end. `execute` would free only one page, as nobody
            # reads its rows.
            self.sql.executescript(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE});")

    # Inside

    def _insert(
        self,
        entry: MailboxEntry,
        http_status: int,
        body: bytes,
        work: bytes,
        items: bytes,
        retention: Retention,
    ) -> None:
        size = charged_bytes(body, work, items)
        if entry.pending and entry.owner:
            self._check_share(entry.owner, size, retention)
        if excess := self._make_room(entry.owner, size, retention):
            raise StoreError(
                f"it would hold {excess} bytes more than mailbox.size, and no answer in it may be "
                "removed yet"
            )
        row = (*msgspec.structs.astuple(entry), http_status, body, work, items, b"", size)
        self.sql.execute(
            f"INSERT INTO answers ({_ENTRY}, http_status, body, work, items, events, bytes) "
            f"VALUES ({', '.join('?' * len(row))})",
            row,
        )
        self._held[entry.owner] += size

    def _check_share(self, owner: str, more_bytes: int, retention: Retention) -> None:
        """Raises: StoreError: the owner's waiting answers would exceed the owner's share."""
        rows = self.sql.execute(
            "SELECT owner, sum(bytes) FROM answers WHERE ended_at IS NULL GROUP BY owner"
        )
        waiting = Counter(dict(rows))
        others = waiting.total() - waiting[owner]
        most = share_of_free(retention.size_bytes, others)
        if waiting[owner] + more_bytes > most:
            raise StoreError(
                f"the waiting answers of this API key would take more than {most} bytes, its share "
                "of mailbox.size"
            )

    def _make_room(self, owner: str | None, more_bytes: int, retention: Retention) -> int:
        """Delete finished answers until there is room for `more_bytes` of the owner: the oldest
        answers of the owner with the most bytes first. So an owner never displaces answers of an
        owner with fewer bytes. Returns the bytes that are still too many.
        """
        held = self._held.copy()
        if owner is not None:
            held[owner] += more_bytes
        excess_bytes = retention.excess_bytes(held.total(), 0)
        while excess_bytes > 0:
            least = 0 if owner is None else held[owner]
            victim = self._victim([name for name in held if held[name] >= least], held)
            if victim is None:
                return excess_bytes
            loser, number, size = victim
            self._delete("WHERE number = ?", number)
            held[loser] -= size
            excess_bytes -= size
        return 0

    def _victim(self, owners: Iterable[str], held: Counter[str]) -> tuple[str, int, int] | None:
        """The owner, the number and the bytes of the answer that is deleted next."""
        for owner in sorted(owners, key=lambda name: -held[name]):
            row = self.sql.execute(
                "SELECT number, bytes FROM answers WHERE owner = ? AND ended_at IS NOT NULL "
                "ORDER BY ended_at, number LIMIT 1",
                (owner,),
            ).fetchone()
            if row is not None:
                return owner, row[0], row[1]
        return None

    def _delete(self, where: str, *arguments: str | float) -> bool:
        gone = self.sql.execute(
            f"DELETE FROM answers {where} RETURNING owner, bytes", arguments
        ).fetchall()
        for owner, size in gone:
            self._held[owner] -= size
        return bool(gone)


def _unpacked(packed: bytes, count: CountBytes) -> bytes:
    """Unpack contents. `count` counts the bytes early enough to bound the memory, and may raise.

    Raises:
        zlib.error: the contents are damaged.
    """
    if not packed:
        return b""
    unpacking = zlib.decompressobj()
    parts = []
    while not unpacking.eof:
        parts.append(unpacking.decompress(packed, _UNPACKED_BYTES))
        packed = unpacking.unconsumed_tail
        if not (parts[-1] or packed or unpacking.eof):
            raise zlib.error("it is torn")
        count(len(parts[-1]))
    return b"".join(parts)


def _entry(row: tuple[object, ...]) -> MailboxEntry:
    values = dict(zip(MailboxEntry.__struct_fields__, row, strict=True))
    # SQLite has integers in place of booleans.
    values["background"], values["streams"] = bool(values["background"]), bool(values["streams"])
    return MailboxEntry(**values)  # type: ignore[arg-type]
