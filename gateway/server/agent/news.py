"""What a gateway is still to be told of its ranks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.workers.agent_bodies import PrintedLine, RankEnded, RankNews

_MOST_LINES: Final = 500


class NewsDesk:
    """Keeps what was told until it is known to have come. Lines come from threads."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called, from any thread, when there is something after there was nothing."""
        self._wake = wake
        self._lock = threading.Lock()
        self._lines: deque[PrintedLine] = deque(maxlen=_MOST_LINES)
        self._lost_lines = 0
        self._ended: list[RankEnded] = []
        # With the last answer, which has all that was not known to have come before it.
        self._told = RankNews(0)

    def add_line(self, rank: str, text: str) -> None:
        with self._lock:
            was_empty = not self._lines
            self._lost_lines += len(self._lines) == _MOST_LINES
            self._lines.append(PrintedLine(rank, text))
        if was_empty:
            self._wake()

    def add_end(self, ended: RankEnded) -> None:
        with self._lock:
            self._ended.append(ended)
        self._wake()

    def has_some(self) -> bool:
        with self._lock:
            return bool(self._lines or self._ended)

    def confirm(self, number: int) -> None:
        """The answer of this number has come. If it isn't the last one, that is said again."""
        with self._lock:
            if number == self._told.number:
                self._told = RankNews(number)

    def tell(self, number: int) -> RankNews:
        """Everything that isn't known to have come, as the answer of this number."""
        with self._lock:
            told = self._told
            lines = [*told.lines, *self._lines]
            lost_lines = told.lost_lines + self._lost_lines + max(0, len(lines) - _MOST_LINES)
            self._told = RankNews(
                number, tuple(lines[-_MOST_LINES:]), lost_lines, (*told.ended, *self._ended)
            )
            self._lines.clear()
            self._lost_lines = 0
            self._ended.clear()
            return self._told
