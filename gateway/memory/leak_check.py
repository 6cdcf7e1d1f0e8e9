"""Finds stranded memory: memory of an ended worker that stays wired for no process until a boot.

macOS only (omlx#2184; after an unload in order omlx#2855). The rule uses only the machine's wired
pages and the workers' footprints:

1. Once no model has been loaded for some seconds, the wired pages are those of the system and of
   other programs.
2. A worker had wired at most its footprint. It also had wired at most the wired pages less those
   of rule 1 and less the footprints of the other workers.
3. If half of the wired pages of an ended worker or more stay wired for a minute, the part that
   neither other programs nor living workers can have wired is stranded.

The check may find less than is stranded: living workers count with their whole footprints, and
pages that another program or worker unwires in that minute count as freed.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from gateway.system.boot import present_boot
from gateway.system.memory import host_memory
from gateway.system.state_file import read_state, write_state

_RETURNS_S: Final = 60.0
# The pages of a process may be freed so long before its end is known.
_TEARDOWN_S: Final = 15.0
# A loss below this part of the worker's wired memory, or below that part of the machine's memory,
# is ignored.
_MISSING_SHARE: Final = 0.5
_LEAST_SHARE: Final = 1 / 32
# How often the figures are stored, for the gateway that starts after this one and its workers died.
_WRITTEN_EVERY_S: Final = 60.0
# The `claims` of an older record are ignored: other programs may have wired or freed too much
# since.
FRESH_S: Final = 120.0


class LoadedWorker(NamedTuple):
    """A worker that has a model, or loads one."""

    model_id: str
    footprint_bytes: int


class WiredReading(NamedTuple):
    """The machine's wired bytes, and its workers by their pids. To be taken every second, on a
    clock that stands still while the machine sleeps.
    """

    at: float
    wired_bytes: int
    workers: Mapping[int, LoadedWorker]


class Leak(NamedTuple):
    """Bytes that the ended worker of a model had wired, and the part of them that is stranded."""

    model_id: str
    held_bytes: int
    missing_bytes: int


class WiredClaim(NamedTuple):
    """The most bytes that a living worker can have wired."""

    model_id: str
    wired_bytes: int


class StrandedRecord(Struct, frozen=True):
    """The figures for the next gateway of the same boot. `bytes` were stranded at the Unix time
    `at`, when the machine had `wired_bytes`. While no model was loaded, it had `unloaded_bytes`
    wired, without stranded bytes; None: not known. `claims` are those of the workers that lived
    then.
    """

    bytes: int = 0
    at: float = 0.0
    unloaded_bytes: int | None = None
    wired_bytes: int = 0
    claims: tuple[WiredClaim, ...] = ()


class _BootRecord(Struct, frozen=True):
    boot: str
    stranded: StrandedRecord


def read_stranded(path: Path) -> StrandedRecord:
    """The record of the present boot; an empty record if there is none."""
    record = read_state(path, _BootRecord)
    if record is None or record.boot != present_boot():
        return StrandedRecord()
    return record.stranded


def write_stranded(path: Path, record: StrandedRecord) -> None:
    """To be called off the event loop."""
    write_state(path, _BootRecord(present_boot(), record))


def leak_check_at_start(
    path: Path, *, follows_crash: bool, takes_over: bool, platform: str = sys.platform
) -> LeakCheck | None:
    """A check that goes on from the record of an earlier gateway; None where nothing is ever
    stranded. To be called before a model is loaded, unless this gateway `takes_over` loaded models.
    """
    if platform != "darwin":
        return None
    host = host_memory()
    record = read_stranded(path)
    if not (follows_crash and 0.0 <= time.time() - record.at <= FRESH_S):
        record = msgspec.structs.replace(record, claims=())
    if not (takes_over or record.bytes or record.claims):
        record = msgspec.structs.replace(record, unloaded_bytes=host.wired_bytes)
    return LeakCheck(host.total_bytes, record)


class _Watch:
    """An ended worker: it had at most `held_bytes` wired while the machine had `before_bytes`."""

    def __init__(self, model_id: str, held_bytes: int, before_bytes: int, since: float) -> None:
        self.model_id = model_id
        self.held_bytes = held_bytes
        self.since = since
        self._before_bytes = self._lowest_bytes = before_bytes

    def observe(self, wired_bytes: int) -> None:
        """Take in a reading. Pages that are wired after a fall are another program's."""
        self._lowest_bytes = min(self._lowest_bytes, wired_bytes)

    @property
    def missing_bytes(self) -> int:
        return self.held_bytes - (self._before_bytes - self._lowest_bytes)


class LeakCheck:
    """Finds leaks in the readings that it gets, without I/O. `bytes` are stranded."""

    def __init__(self, total_bytes: int, record: StrandedRecord) -> None:
        """`total_bytes` is the machine's memory. `record` is that of an earlier gateway, with which
        the workers of its `claims` ended.
        """
        self.bytes = max(0, record.bytes)
        self._unloaded_bytes = record.unloaded_bytes
        self._least_bytes = int(total_bytes * _LEAST_SHARE)
        self._recent: deque[WiredReading] = deque()
        self._watches: list[_Watch] = []
        self._claims, self._claimed_at_bytes = record.claims, record.wired_bytes
        self._written: tuple[object, ...] = ()
        self._written_at = 0.0

    @property
    def undecided_bytes(self) -> int:
        """Bytes of ended workers that are still wired, and may yet be freed within a minute."""
        missing_bytes = sum(watch.missing_bytes for watch in self._watches)
        return min(missing_bytes, self._unowned_bytes(self._recent[-1])) if self._recent else 0

    def ended(self, pid: int, now: float) -> None:
        """Note that a worker has ended, however that was."""
        lives = [reading for reading in self._recent if pid in reading.workers]
        if lives and self._unloaded_bytes is not None:
            before_bytes = max(life.wired_bytes for life in lives)
            model_id = lives[-1].workers[pid].model_id
            self._watch(_Watch(model_id, self._wired_by(pid), before_bytes, now))

    def observe(self, reading: WiredReading) -> list[Leak]:
        """Take in a reading. Returns the leaks that the reading proves."""
        now, wired_bytes = reading.at, reading.wired_bytes
        self._take_up(now)
        self._recent.append(reading)
        while now - self._recent[0].at > _TEARDOWN_S:
            self._recent.popleft()
        for watch in self._watches:
            watch.observe(wired_bytes)
        self._watches = [watch for watch in self._watches if self._is_missing(watch)]
        due = [watch for watch in self._watches if now - watch.since >= _RETURNS_S]
        self._watches = [watch for watch in self._watches if watch not in due]
        findings = [leak for watch in due if (leak := self._find(watch, reading)) is not None]
        if self._unloaded_bytes is not None:
            self.bytes = max(0, min(self.bytes, wired_bytes - self._unloaded_bytes))
        was_loaded = any(wired_reading.workers for wired_reading in self._recent)
        if not (was_loaded or self._watches or self.bytes):
            self._unloaded_bytes = wired_bytes
        return findings

    def due(self, at: float) -> StrandedRecord | None:
        """The record to write at this Unix time; None: none is due. A record is due when the
        stranded bytes or the set of workers have changed. While a worker has wired enough for a
        leak, a record is due every minute.
        """
        if not self._recent:
            return None
        last = self._recent[-1]
        claims = tuple(
            WiredClaim(worker.model_id, wired_bytes)
            for pid, worker in last.workers.items()
            if (wired_bytes := self._wired_by(pid)) >= self._least_bytes
        )
        lasting = self.bytes, frozenset(last.workers)
        aged = bool(claims) and not 0.0 <= at - self._written_at < _WRITTEN_EVERY_S
        if lasting == self._written and not aged:
            return None
        self._written, self._written_at = lasting, at
        return StrandedRecord(self.bytes, at, self._unloaded_bytes, last.wired_bytes, claims)

    def _take_up(self, now: float) -> None:
        for claim in self._claims:
            watch = _Watch(claim.model_id, claim.wired_bytes, self._claimed_at_bytes, now)
            self._watch(watch)
        self._claims = ()

    def _watch(self, watch: _Watch) -> None:
        if self._is_missing(watch):
            self._watches.append(watch)

    def _is_missing(self, watch: _Watch) -> bool:
        return watch.missing_bytes >= self._least_of(watch)

    def _least_of(self, watch: _Watch) -> int:
        return max(self._least_bytes, int(watch.held_bytes * _MISSING_SHARE))

    def _find(self, watch: _Watch, reading: WiredReading) -> Leak | None:
        missing_bytes = min(watch.missing_bytes, self._unowned_bytes(reading))
        if missing_bytes < self._least_of(watch):
            return None
        self.bytes += missing_bytes
        return Leak(watch.model_id, watch.held_bytes, missing_bytes)

    def _wired_by(self, pid: int) -> int:
        """The most bytes that a worker can have had wired in the last `_TEARDOWN_S`."""
        lives = [reading for reading in self._recent if pid in reading.workers]
        held_bytes = max(life.workers[pid].footprint_bytes for life in lives)
        return min(
            held_bytes, max(self._unowned_bytes(wired_reading, but=pid) for wired_reading in lives)
        )

    def _unowned_bytes(self, reading: WiredReading, but: int | None = None) -> int:
        """Wired bytes less those that were wired without models, those of living workers except the
        worker `but`, and the stranded bytes.
        """
        if self._unloaded_bytes is None:
            return 0
        owned_bytes = sum(
            worker.footprint_bytes for pid, worker in reading.workers.items() if pid != but
        )
        known_bytes = self._unloaded_bytes + self.bytes + owned_bytes
        return max(0, reading.wired_bytes - known_bytes)
