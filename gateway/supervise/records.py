"""Which workers a gateway has started, for the next one to find if this one is killed."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from gateway.supervise.identity import ProcessIdentity

logger = logging.getLogger(__name__)


class WorkerRecord(Struct, frozen=True):
    """`name` says what it was for, to people."""

    process: ProcessIdentity
    name: str


class WorkerRecords:
    """A folder with a file for each worker. Thread-safe, as each file has one writer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, record: WorkerRecord) -> None:
        """A full disk must not keep a model from being served: it is logged."""
        path = self._path(record.process.pid)
        try:
            unfinished = path.with_suffix(".new")
            unfinished.write_bytes(msgspec.json.encode(record))
            unfinished.replace(path)
        except OSError as error:
            logger.warning("Worker %d can't be recorded in %s: %s", record.process.pid, path, error)

    def remove(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            self._path(pid).unlink(missing_ok=True)

    def leftovers(self) -> Iterator[WorkerRecord]:
        """What is recorded; files that can't be read are removed."""
        for path in sorted(self._folder.iterdir()):
            try:
                yield msgspec.json.decode(path.read_bytes(), type=WorkerRecord)
            except (OSError, msgspec.MsgspecError):
                with contextlib.suppress(OSError):
                    path.unlink()

    def _path(self, pid: int) -> Path:
        return self._folder / f"{pid}.json"
