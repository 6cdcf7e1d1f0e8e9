"""Leftovers: workers that an earlier gateway with this state folder has left. Each worker is
recorded when it starts, and the next gateway ends the recorded workers that still run.
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
from gateway.workers import ladder
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

    def leftovers(self) -> Iterator[WorkerRecord]:
        """All records. Files that can't be read are removed."""
        for path in sorted(self._folder.iterdir()):
            record = read_state(path, WorkerRecord)
            if record is not None:
                yield record
            else:
                with contextlib.suppress(OSError):
                    path.unlink()

    def recorded(self) -> Iterator[WorkerRecord]:
        """All records. Unlike `leftovers`, this removes no file, and the folder may be missing."""
        with contextlib.suppress(OSError):
            for path in sorted(self._folder.iterdir()):
                if (record := read_state(path, WorkerRecord)) is not None:
                    yield record

    def _path(self, pid: int) -> Path:
        return self._folder / f"{pid}.json"


logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.05
_MARKED_S: Final = 10.0
_AT_ONCE: Final = 8


class Swept(Struct, frozen=True):
    """A worker that `sweep` found running. Its end took `seconds`, unless it survived."""

    pid: int
    name: str
    ended: bool
    seconds: float


def sweep(records: WorkerRecords) -> list[Swept]:
    """End all recorded workers that still run, several at a time. Blocks until each of them has
    ended, or has survived SIGKILL.

    A worker without its gateway ends by itself, unless the worker was stopped. So each worker gets
    SIGTERM and SIGCONT, and then SIGKILL if it hasn't ended.
    """
    leftovers = []
    for record in records.leftovers():
        if alive(record.process):
            leftovers.append(record)
            continue
        if record.mark is not None:
            # The guard has ended; what it guarded may be left.
            kill_marked(record.mark, _MARKED_S)
        records.remove(record.process.pid)
    if not leftovers:
        return []
    below = descendants(each.process.pid for each in leftovers)
    with ThreadPoolExecutor(_AT_ONCE, "sweep") as pool:
        swept = list(pool.map(lambda record: _end(record, below[record.process.pid]), leftovers))
    for each in swept:
        if each.ended:
            records.remove(each.pid)
    return swept


def _end(record: WorkerRecord, children: Iterable[ProcessIdentity]) -> Swept:
    process = record.process
    logger.warning("Ending worker %d of an earlier gateway (%s)", process.pid, record.name)
    began = time.monotonic()
    command = None if record.mark is None else CommandProcesses(process.pid, record.mark)
    if command is not None:
        command.below()
    for rung in ladder.orphaned(_footprint_bytes(process.pid)):
        if rung.step is ladder.LadderStep.TERMINATE:
            send(process, signal.SIGTERM, signal.SIGCONT)
        else:
            send(process, signal.SIGKILL)
        if _gone_within(process, rung.deadline_s):
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
    return Swept(process.pid, record.name, ended, seconds)


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
