"""Which workers a gateway has started, for the next one to find if this one is killed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from gateway.system.processes import ProcessIdentity
from gateway.system.state_file import read_state, write_state


class WorkerRecord(Struct, frozen=True):
    """`name` says what it was for, to people."""

    process: ProcessIdentity
    name: str


class WorkerRecords:
    """A folder with a file for each worker. Thread-safe, as each file has one writer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, record: WorkerRecord) -> None:
        write_state(self._path(record.process.pid), record)

    def remove(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            self._path(pid).unlink(missing_ok=True)

    def leftovers(self) -> Iterator[WorkerRecord]:
        """What is recorded; files that can't be read are removed."""
        for path in sorted(self._folder.iterdir()):
            record = read_state(path, WorkerRecord)
            if record is not None:
                yield record
            else:
                with contextlib.suppress(OSError):
                    path.unlink()

    def recorded(self) -> Iterator[WorkerRecord]:
        """The same, but the folder stays as it is, and may be missing."""
        with contextlib.suppress(OSError):
            for path in sorted(self._folder.iterdir()):
                if (record := read_state(path, WorkerRecord)) is not None:
                    yield record

    def _path(self, pid: int) -> Path:
        return self._folder / f"{pid}.json"
