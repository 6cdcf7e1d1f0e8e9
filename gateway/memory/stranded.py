"""What should have come back after a worker's end and did not.

On macOS the death of a process with much wired memory can leave it taken, by no process, until
the next boot (omlx#2184). No I/O here; the caller brings readings and the time, in seconds.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final, NamedTuple

# Readings must agree that far to count as quiet; less than this is never called stranded.
_NOISE_BYTES: Final = 256_000_000
_NOISE_SHARE: Final = 0.05
_QUIET_READINGS: Final = 5
# As long as the machine isn't quiet nothing is decided; after this the question is dropped.
_PATIENCE_S: Final = 600.0
# Of the machine's memory: between two gateways nobody has watched what else has moved.
_UNWATCHED_SHARE: Final = 0.02


def beyond_noise(above_bytes: int, total_bytes: int) -> int:
    """What is to be called stranded of so much above the base that a dead gateway has known."""
    return above_bytes if above_bytes >= max(_NOISE_BYTES, total_bytes * _UNWATCHED_SHARE) else 0


class Reading(NamedTuple):
    """`used_bytes` of the machine, and what of it workers and all other processes hold.

    `busy` if a worker starts, loads, ends or computes: its memory moves.
    """

    at: float
    used_bytes: int
    workers_bytes: int
    others_bytes: int
    busy: bool

    @property
    def unowned_bytes(self) -> int:
        """What belongs to no process: the kernel's own, and what is stranded."""
        return self.used_bytes - self.workers_bytes - self.others_bytes


class Ended(NamedTuple):
    """A worker that has ended and had held so much, beside a machine that had this unowned."""

    model_id: str
    held_bytes: int
    before_bytes: int
    at: float


class Finding(NamedTuple):
    """What became of the memory of an ended worker."""

    model_id: str
    held_bytes: int
    missing_bytes: int


def moved(before_bytes: int | None, now_bytes: int | None) -> bool:
    """Whether a base differs from an earlier one by more than noise."""
    if before_bytes is None or now_bytes is None:
        return before_bytes is not now_bytes
    return abs(now_bytes - before_bytes) >= _NOISE_BYTES


class Stranded:
    """Watches for it. Other programs move the figures too, so one reading proves nothing: it takes
    several quiet ones that agree.
    """

    def __init__(self, stranded_bytes: int = 0) -> None:
        """With what an earlier gateway has found since the same boot."""
        self.bytes = stranded_bytes
        self._quiet: deque[Reading] = deque(maxlen=_QUIET_READINGS)
        self._base_bytes: float | None = None
        self._ended: list[Ended] = []

    @property
    def base_bytes(self) -> int | None:
        """What belongs to no process beside that; None before the first quiet time."""
        return None if self._base_bytes is None else int(self._base_bytes)

    @property
    def undecided(self) -> bool:
        """A worker has ended and it is not known yet whether all came back."""
        return bool(self._ended)

    def ended(self, model_id: str, held_bytes: int, now: float) -> None:
        """A worker is gone. Without a base to compare with nothing can be said."""
        if self._base_bytes is not None:
            before = int(self._base_bytes) + self.bytes
            self._ended.append(Ended(model_id, held_bytes, before, now))
        self._quiet.clear()

    def observe(self, reading: Reading) -> list[Finding]:
        """Take in a reading; returns what is decided by it."""
        self._ended = [each for each in self._ended if reading.at - each.at < _PATIENCE_S]
        if reading.busy or not self._agrees(reading):
            self._quiet.clear()
        if not reading.busy:
            self._quiet.append(reading)
        if len(self._quiet) < _QUIET_READINGS:
            return []
        unowned = median(each.unowned_bytes for each in self._quiet)
        findings = self._decide(int(unowned))
        if self._base_bytes is None or not self.bytes:
            self._base_bytes = unowned - self.bytes
        self._decay(int(unowned))
        return findings

    def _agrees(self, reading: Reading) -> bool:
        return not self._quiet or (
            abs(reading.unowned_bytes - self._quiet[0].unowned_bytes) < _NOISE_BYTES
        )

    def _decide(self, unowned_bytes: int) -> list[Finding]:
        """What ended since the last quiet time shares what is missing."""
        ended, self._ended = self._ended, []
        if not ended:
            return []
        held = sum(each.held_bytes for each in ended)
        missing = min(held, max(0, unowned_bytes - ended[0].before_bytes))
        if missing < max(_NOISE_BYTES, held * _NOISE_SHARE):
            missing = 0
        self.bytes += missing
        return [
            Finding(each.model_id, each.held_bytes, missing * each.held_bytes // max(held, 1))
            for each in ended
        ]

    def _decay(self, unowned_bytes: int) -> None:
        """Some of it turned up."""
        if self._base_bytes is not None:
            above = max(0, unowned_bytes - int(self._base_bytes))
            self.bytes = min(self.bytes, above)
            if self.bytes < _NOISE_BYTES:
                self.bytes = 0
