"""The lines that processes print: they are read from a pipe and written with the time into a
rotated file, and the last ones are kept in memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from gateway.system.lane import start_thread
from gateway.system.log_files import RotatedFile
from gateway.system.log_lines import stamp

_LONGEST_LINE_BYTES: Final = 8192


class OutputPipe:
    """The reading end of a process's output pipe. One thread reads `lines`; another thread may call
    `stop`.
    """

    def __init__(self, descriptor: int, begun: bytes = b"") -> None:
        """`begun` is the part of a line that was read already."""
        self.descriptor = descriptor
        self.rest = begun
        self._stop_read, self._stop_write = os.pipe()

    def lines(self) -> Iterator[str]:
        """The lines that the process prints, until it closes the pipe or `stop` is called. Lines
        are cut at a bound, as a process may print without ever ending a line.
        """
        poller = select.poll()
        poller.register(self.descriptor, select.POLLIN)
        poller.register(self._stop_read, select.POLLIN)
        try:
            while not any(ready == self._stop_read for ready, _ in poller.poll()):
                if not (read := os.read(self.descriptor, _LONGEST_LINE_BYTES)):
                    if self.rest:
                        yield from _split(self.rest)
                    return
                *whole, self.rest = (self.rest + read).split(b"\n")
                for line in whole:
                    yield from _split(line)
                if len(self.rest) >= _LONGEST_LINE_BYTES:
                    line, self.rest = self.rest, b""
                    yield from _split(line)
        finally:
            self._close()

    def stop(self) -> None:
        """Have `lines` end soon. Then `rest` is the part of an unfinished line."""
        # `lines` may have ended already, and closed this pipe.
        with contextlib.suppress(OSError):
            os.write(self._stop_write, b"\0")

    def _close(self) -> None:
        for descriptor in (self.descriptor, self._stop_read, self._stop_write):
            os.close(descriptor)
        self._stop_write = -1


def _split(line: bytes) -> Iterator[str]:
    # A progress bar draws itself anew after every carriage return.
    yield from line.decode("utf-8", "replace").rstrip("\r\n").split("\r")


logger = logging.getLogger(__name__)

_LINES_IN_MEMORY: Final = 1000


class ProcessLog(Protocol):
    """Takes the lines of one process. Called from threads."""

    def mark_start(self, pid: int, incarnation: int) -> None: ...

    def add(self, line: str) -> None: ...


class WorkerLog:
    """The log of one model, across its incarnations. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # This handler of `logging` is used for its rotation; the lines are not log records of the
        # gateway.
        self._file = RotatedFile(path, logger.error)
        self._lines: deque[str] = deque(maxlen=_LINES_IN_MEMORY)
        # Lines that wait for the disk: at most one line for each thread that adds lines.
        self._unwritten: deque[str] = deque()
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def mark_start(self, pid: int, incarnation: int) -> None:
        """Add a line that another worker starts. Doesn't wait for the disk."""
        with self._lock:
            self._lines.clear()
            self._unwritten.append(
                f"{stamp(time.time())} -- worker started: pid {pid}, incarnation {incarnation} --"
            )
        # If no thread can be started, this mark is written with the first line.
        with contextlib.suppress(OSError):
            start_thread(self._write, f"log-begin-{pid}")

    def add(self, line: str) -> None:
        with self._lock:
            self._lines.append(line)
            self._unwritten.append(f"{stamp(time.time())} {line}")
        self._write()

    def tail(self, lines: int) -> list[str]:
        """The last lines of the present worker; without one, of the last worker."""
        with self._lock:
            return list(self._lines)[-lines:] if lines > 0 else []

    def close(self) -> None:
        """Close the file. Doesn't wait for the disk."""
        with contextlib.suppress(OSError):
            start_thread(self._file.close, "log-close")

    def _write(self) -> None:
        with self._writing:
            while self._unwritten:
                line = self._unwritten.popleft()
                self._file.handle(
                    logging.LogRecord("worker", logging.INFO, "", 0, line, None, None)
                )


class RankLog:
    """A follower's log: passes each line to the model's log, marked with the rank."""

    def __init__(self, log: WorkerLog, rank: int) -> None:
        self._log = log
        self._rank = rank

    def mark_start(self, pid: int, incarnation: int) -> None:
        """Do nothing, as rank 0 has begun the model's log."""

    def add(self, line: str) -> None:
        self._log.add(f"[rank {self._rank}] {line}")
