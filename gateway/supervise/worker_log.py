"""What a model's workers print: the last lines in memory, all of it in a rotating file."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Final

_LINES_KEPT: Final = 1000
_LONGEST_LINE_BYTES: Final = 8192
_FILE_BYTES: Final = 10_000_000
_FILES_KEPT: Final = 3


def lines(pipe: IO[bytes]) -> Iterator[str]:
    """A process's output to its end.

    Lines are cut at a bound, since a worker may print without ever ending a line.
    """
    with pipe:
        while line := pipe.readline(_LONGEST_LINE_BYTES):
            # A progress bar draws itself anew after every carriage return.
            yield from line.decode("utf-8", "replace").rstrip("\r\n").split("\r")


class WorkerLog:
    """The log of one model, across its incarnations. Thread-safe."""

    def __init__(self, path: Path) -> None:
        # logging's handler is used for its rotation; the lines are not our log records.
        self._file = RotatingFileHandler(
            path, maxBytes=_FILE_BYTES, backupCount=_FILES_KEPT, encoding="utf-8", delay=True
        )
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._followers: set[Callable[[str | None], None]] = set()
        self._lock = threading.Lock()

    def add(self, line: str) -> None:
        record = logging.LogRecord("worker", logging.INFO, "", 0, line, None, None)
        with self._lock:
            self._lines.append(line)
            followers = tuple(self._followers)
            # A full disk must cost log lines, not the reader: handlers report and go on.
            self._file.handle(record)
        for follower in followers:
            follower(line)

    def tail(self, lines: int) -> list[str]:
        with self._lock:
            return list(self._lines)[-lines:] if lines > 0 else []

    def follow(self, on_line: Callable[[str | None], None]) -> Callable[[], None]:
        """Call `on_line` with each new line, from the reader's thread, and with None at the end.

        Returns how to stop following.
        """
        with self._lock:
            self._followers.add(on_line)

        def unfollow() -> None:
            with self._lock:
                self._followers.discard(on_line)

        return unfollow

    def close(self) -> None:
        with self._lock:
            self._file.close()
            followers = tuple(self._followers)
        for follower in followers:
            follower(None)
