"""Whether a worker stays within its grant. No I/O; the caller brings the time, in seconds."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

# Readings are a second apart and grants are estimates: what is over by less isn't worth an answer.
_SHARE: Final = 0.1
_LEAST_BYTES: Final = 64_000_000
# Given to a trim before more is done.
_PATIENCE_S: Final = 5.0


class Advice(StrEnum):
    TRIM = "trim"
    REPLACE = "replace"


class Watch:
    """Judges one worker's readings."""

    def __init__(self, granted_bytes: int) -> None:
        self._granted_bytes = granted_bytes
        self._trimmed_at: float | None = None

    @property
    def bound_bytes(self) -> int:
        """What it may hold before it is replaced."""
        return self._granted_bytes + max(int(self._granted_bytes * _SHARE), _LEAST_BYTES)

    def judge(self, now: float, footprint_bytes: int) -> Advice | None:
        """What to do after a reading: over the grant it is asked to trim; if it is still over the
        bound a while later, it is replaced.
        """
        if footprint_bytes <= self._granted_bytes:
            self._trimmed_at = None
            return None
        if self._trimmed_at is None:
            self._trimmed_at = now
            return Advice.TRIM
        if now - self._trimmed_at < _PATIENCE_S:
            return None
        if footprint_bytes > self.bound_bytes:
            return Advice.REPLACE
        self._trimmed_at = now
        return Advice.TRIM
