"""A rule that judges by what is available and resident, to show what becomes of it."""

from __future__ import annotations

from collections import deque
from statistics import median

_NOISE_BYTES = 256_000_000
_READINGS = 5


class AvailableRule:
    """Five quiet readings in a row that agree on what belongs to no process, before an end and
    after it.
    """

    def __init__(self) -> None:
        self.missing_bytes = 0.0
        self._quiet: deque[float] = deque(maxlen=_READINGS)
        self._base: float | None = None
        self._held = 0.0

    def ended(self, held_bytes: float) -> None:
        if self._base is not None:
            self._held += held_bytes
        self._quiet.clear()

    def observe(self, unowned_bytes: float, *, busy: bool) -> None:
        if busy or (self._quiet and abs(unowned_bytes - self._quiet[0]) >= _NOISE_BYTES):
            self._quiet.clear()
        if not busy:
            self._quiet.append(unowned_bytes)
        if len(self._quiet) < _READINGS:
            return
        unowned = median(self._quiet)
        if self._held and self._base is not None:
            missing = min(self._held, unowned - self._base - self.missing_bytes)
            if missing >= max(_NOISE_BYTES, 0.05 * self._held):
                self.missing_bytes += missing
            self._held = 0.0
        if not self.missing_bytes:
            self._base = unowned
