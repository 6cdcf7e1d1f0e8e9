"""How long a pull goes on trying, and how fast it goes."""

from __future__ import annotations

from collections import deque
from typing import Final

_LONGEST_PAUSE_S: Final = 60.0
_LONGEST_ASKED_S: Final = 600.0


class Patience:
    """Pauses that double, until there are bytes again or it has lasted too long."""

    def __init__(self, first_s: float, patience_s: float, now: float) -> None:
        self._first_s = first_s
        self._patience_s = patience_s
        self._failures = 0
        self._since = now

    def progressed(self, now: float) -> None:
        self._failures = 0
        self._since = now

    def failed(self, now: float, asked_s: float | None = None) -> float | None:
        """Seconds until the next attempt, `asked_s` at least; None: there is none."""
        pause_s: float = min(self._first_s * 2**self._failures, _LONGEST_PAUSE_S)
        self._failures = min(self._failures + 1, 30)
        pause_s = max(pause_s, min(asked_s or 0.0, _LONGEST_ASKED_S))
        return None if now + pause_s - self._since > self._patience_s else pause_s


class Pace:
    """Bytes per second over the last seconds."""

    _WINDOW_S: Final = 15.0
    _LEAST_S: Final = 1.0

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, now: float, done_bytes: int) -> None:
        """A file that was begun anew takes bytes back: what was seen before says nothing then."""
        if self._seen and done_bytes < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, done_bytes))
        while len(self._seen) > 2 and now - self._seen[1][0] >= self._WINDOW_S:
            self._seen.popleft()

    @property
    def bytes_per_s(self) -> float | None:
        """None: it can't be told yet."""
        if not self._seen:
            return None
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        if ended - began < self._LEAST_S:
            return None
        return (last - first) / (ended - began)

    def seconds_left(self, remaining_bytes: int) -> float | None:
        rate = self.bytes_per_s
        return remaining_bytes / rate if rate else None
