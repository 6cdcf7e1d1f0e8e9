"""Orphans: workers that an earlier gateway with this state folder has left. Each worker is recorded
when it starts, and the next gateway ends the recorded workers that still run.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor  # noqa: TID251 - all of it ends below
from pathlib import Path
from typing import Final

from msgspec import Struct

from gateway.system.memory import footprint
from gateway.system.memory_reading import FootprintError
from gateway.system.processes import ProcessIdentity, alive, descendants, send
from gateway.system.state_file import read_state, write_state
from gateway.workers import shutdown_steps
from protocol.process_tree import CommandProcesses, kill_marked


class WorkerRecord(Struct, frozen=True):
    """The record of a worker's process. `name` is its model or purpose, for people. The processes
    of a command have a `mark`.
    """

    process: ProcessIdentity
    name: str
    mark: str | None = None


class WorkerRecords:
    """A folder with one file for each worker. Thread-safe, as each file has one writer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, record: WorkerRecord) -> None:
        write_state(self._path(record.process.pid), record)

    def remove(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            self._path(pid).unlink(missing_ok=True)

    def records(self, *, remove_unreadable: bool = False) -> Iterator[WorkerRecord]:
        """All records. The folder may be missing."""
        with contextlib.suppress(OSError):
            for path in sorted(self._folder.iterdir()):
                record = read_state(path, WorkerRecord)
                if record is not None:
                    yield record
                elif remove_unreadable:
                    with contextlib.suppress(OSError):
                        path.unlink()

    def _path(self, pid: int) -> Path:
        return self._folder / f"{pid}.json"


logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.05
_MARKED_S: Final = 10.0
_AT_ONCE: Final = 8


class Orphan(Struct, frozen=True):
    """An orphan that was found running. Its end took `seconds`, unless it survived."""

    pid: int
    name: str
    ended: bool
    seconds: float


def end_orphans(records: WorkerRecords) -> list[Orphan]:
    """End all recorded workers that still run, several at a time. Blocks until each of them has
    ended, or has survived SIGKILL.

    A worker without its gateway ends by itself, unless the worker was stopped. So each worker gets
    SIGTERM and SIGCONT, and then SIGKILL if it hasn't ended.
    """
    running = []
    for record in records.records(remove_unreadable=True):
        if alive(record.process):
            running.append(record)
            continue
        if record.mark is not None:
            # The guard has ended, but the processes that it guarded may run.
            kill_marked(record.mark, _MARKED_S)
        records.remove(record.process.pid)
    if not running:
        return []
    below = descendants(record.process.pid for record in running)
    with ThreadPoolExecutor(_AT_ONCE, "orphans") as pool:
        orphans = list(pool.map(lambda record: _end(record, below[record.process.pid]), running))
    for orphan in orphans:
        if orphan.ended:
            records.remove(orphan.pid)
    return orphans


def _end(record: WorkerRecord, children: Iterable[ProcessIdentity]) -> Orphan:
    process = record.process
    logger.warning("Ending worker %d of an earlier gateway (%s)", process.pid, record.name)
    began = time.monotonic()
    command = None if record.mark is None else CommandProcesses(process.pid, record.mark)
    if command is not None:
        command.below()
    for step, deadline_s in shutdown_steps.orphaned(_footprint_bytes(process.pid)):
        if step is shutdown_steps.ShutdownStep.TERMINATE:
            send(process, signal.SIGTERM, signal.SIGCONT)
        else:
            send(process, signal.SIGKILL)
        if _gone_within(process, deadline_s):
            break
    for child in children:
        send(child, signal.SIGKILL)
    if command is not None:
        command.kill(_MARKED_S)
    seconds = time.monotonic() - began
    ended = not alive(process)
    if ended:
        logger.warning("Worker %d ended after %.2f s", process.pid, seconds)
    else:
        logger.error("Worker %d survived SIGKILL; its memory stays taken", process.pid)
    return Orphan(process.pid, record.name, ended, seconds)


def _gone_within(process: ProcessIdentity, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while alive(process):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def _footprint_bytes(pid: int) -> int | None:
    try:
        return footprint(pid).current_bytes
    except FootprintError:
        return None
