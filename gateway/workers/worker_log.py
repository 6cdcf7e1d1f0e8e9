"""What a model's workers print: all of it with the time in a rotated file, the last in memory."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final, Protocol

from gateway.system.lane import start_thread
from gateway.system.log_files import RotatedFile
from gateway.system.log_lines import stamp

logger = logging.getLogger(__name__)

_LINES_KEPT: Final = 1000


class ProcessLog(Protocol):
    """Where the lines of one process go. Called from threads."""

    def begin(self, pid: int, incarnation: int) -> None: ...

    def add(self, line: str) -> None: ...


class WorkerLog:
    """The log of one model, across its incarnations. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # logging's handler is used for its rotation; the lines are not our log records.
        self._file = RotatedFile(path, logger.error)
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        # No longer than there are threads that add a line each, and wait for the disk.
        self._unwritten: deque[str] = deque()
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def begin(self, pid: int, incarnation: int) -> None:
        """What follows is of another worker. Doesn't wait for the disk."""
        with self._lock:
            self._lines.clear()
            self._unwritten.append(
                f"{stamp(time.time())} -- worker started: pid {pid}, incarnation {incarnation} --"
            )
        # Without a thread the mark is written with the first line.
        with contextlib.suppress(OSError):
            start_thread(self._write, f"log-begin-{pid}")

    def add(self, line: str) -> None:
        with self._lock:
            self._lines.append(line)
            self._unwritten.append(f"{stamp(time.time())} {line}")
        self._write()

    def tail(self, lines: int) -> list[str]:
        """The last that the present worker has printed, or the one before it if there is none."""
        with self._lock:
            return list(self._lines)[-lines:] if lines > 0 else []

    def close(self) -> None:
        """Doesn't wait for the disk either."""
        with contextlib.suppress(OSError):
            start_thread(self._file.close, "log-close")

    def _write(self) -> None:
        with self._writing:
            while self._unwritten:
                line = self._unwritten.popleft()
                self._file.handle(
                    logging.LogRecord("worker", logging.INFO, "", 0, line, None, None)
                )
