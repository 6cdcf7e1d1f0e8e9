"""Which ranks live on another host under a lease, and when one that nobody hears of must have
ended. No I/O; the caller brings the time, in seconds.

The host says how a rank has ended, as long as it can be heard. If it can't, or ends the lease, it
ends the ranks by itself, and what that takes is waited for: a rank is never called ended while it
may be alive.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gateway.workers import ladder
from gateway.workers.ladder import Step
from protocol.grace import grace_s

# For the host to notice the end of the lease, and for a process to die of SIGKILL.
_SLACK_S: Final = 1.0
_LARGEST_BYTES: Final = 1 << 50


class _End(NamedTuple):
    """It must have come by then."""

    at: float
    reason: str


class Tenants:
    """By their identities. Whatever is said of one may come late, or twice."""

    def __init__(self) -> None:
        self._most_bytes: dict[str, int] = {}
        self._ends: dict[str, _End] = {}
        self._unanswered: dict[str, str] = {}
        self._unwanted: dict[str, None] = {}

    def expect(self, rank_id: str, promised_bytes: int) -> None:
        """One that is about to be started, and may hold so much; 0: nobody knows how much."""
        self._most_bytes[rank_id] = promised_bytes or _LARGEST_BYTES

    def measured(self, rank_id: str, footprint_bytes: int) -> None:
        if rank_id in self._most_bytes:
            self._most_bytes[rank_id] = max(self._most_bytes[rank_id], footprint_bytes)

    def unanswered(self, rank_id: str, reason: str) -> None:
        """Nobody knows whether it was started. The host ends it, or keeps it from being started, as
        soon as it hears that; `reason` is how its end is told.
        """
        if rank_id in self._most_bytes:
            self._unanswered[rank_id] = reason
            self._unwanted[rank_id] = None

    def doubt(self, rank_id: str) -> str | None:
        """The reason, if nobody knows whether it was started."""
        return self._unanswered.get(rank_id)

    def disown(self, rank_id: str) -> None:
        """The host is to end it as soon as it can be told."""
        if rank_id in self._most_bytes:
            self._unwanted[rank_id] = None

    @property
    def unwanted(self) -> tuple[str, ...]:
        """What the host is to be told next."""
        return tuple(self._unwanted)

    def told(self, unwanted: tuple[str, ...], now: float) -> None:
        """The host has heard this. Of one that was never there it won't say that it has ended."""
        for each in unwanted:
            self._unwanted.pop(each, None)
            if (reason := self.doubt(each)) is not None:
                self._ends_within(each, now, reason)

    def ended(self, rank_id: str) -> None:
        """The host says so, or has never started it."""
        for each in (self._most_bytes, self._ends, self._unanswered, self._unwanted):
            each.pop(rank_id, None)

    def lose(self, now: float, reason: str) -> None:
        """The lease is over: the host has begun to end all of them."""
        self._unwanted.clear()
        for each in self._most_bytes:
            self._ends_within(each, now, reason)

    def due(self, now: float) -> list[tuple[str, str]]:
        """Those that must have ended by now, each with the reason."""
        due = [(each, end.reason) for each, end in self._ends.items() if now >= end.at]
        for rank_id, _ in due:
            self.ended(rank_id)
        return due

    def _ends_within(self, rank_id: str, now: float, reason: str) -> None:
        most_bytes = self._most_bytes[rank_id]
        rungs = ladder.orphaned(most_bytes)
        gentle_s = sum(each.deadline_s for each in rungs if each.step is Step.TERMINATE)
        # The agent may die on that way: then each rank ends by itself.
        at = now + gentle_s + grace_s(most_bytes) + _SLACK_S
        self._ends.setdefault(rank_id, _End(at, reason))
