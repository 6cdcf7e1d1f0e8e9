"""How long ranks on another host live without their gateway, and when the gateway may call a rank
ended that it hears nothing of. No I/O; the caller brings the time, in seconds, each side by its own
clock.

The gateway asks for news again and again, in turns. The host counts the lease from the last answer
that the gateway is known to have got, as its next turn says; the gateway counts from the moment
when it got that answer. So the gateway is never the first to call the ranks ended, whatever is lost
on the way, in either direction.

The host says how a rank has ended, as long as the host can be heard. A host that can't be heard, or
that ends the lease, ends the ranks by itself, and the gateway waits for as long as that takes: a
rank is never called ended while it may be alive.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gateway.workers import ladder
from gateway.workers.ladder import LadderStep
from protocol.process import grace_s

# A connection that was closed, mostly by a gateway that died, has so long to come back.
RECONNECT_S: Final = 1.0
# A caller that comes later than this part of the lease was itself stopped or asleep.
_ABSENCE: Final = 0.25
_SHORTEST_ABSENCE_S: Final = 1.0


def _absence_s(lease_s: float) -> float:
    return max(_SHORTEST_ABSENCE_S, lease_s * _ABSENCE)


class Lease:
    """The agent's side of a lease."""

    def __init__(self, now: float, lease_s: float) -> None:
        self.lease_s = lease_s
        self._expires_at = now + lease_s
        self._number = 0
        # When each answer was given that isn't confirmed yet.
        self._answered: dict[int, float] = {}
        self._closed_at: float | None = None
        self._judged_at = now

    def turn(self, confirmed: int) -> bool:
        """The gateway asks for news, and has got the answer with this number last. Returns whether
        it lacks a later one.
        """
        self._closed_at = None
        answered_at = self._answered.get(confirmed)
        if answered_at is not None:
            self._expires_at = answered_at + self.lease_s
        self._answered = {k: at for k, at in self._answered.items() if k > confirmed}
        return bool(self._answered)

    def answer(self, now: float) -> int:
        """The number of an answer that is given now."""
        self._number += 1
        self._answered[self._number] = now
        return self._number

    def closed(self, now: float) -> None:
        """The connection that a turn came by is gone."""
        if self._closed_at is None:
            self._closed_at = now

    def judge(self, now: float) -> str | None:
        """Why the ranks must end, or None. To be called a few times a second."""
        absent_s = now - self._judged_at
        self._judged_at = now
        if absent_s > _absence_s(self.lease_s):
            self._expires_at += absent_s
            self._answered = {k: at + absent_s for k, at in self._answered.items()}
            if self._closed_at is not None:
                self._closed_at += absent_s
        if now >= self._expires_at:
            return f"its gateway has not been heard for {self.lease_s:g} s"
        if self._closed_at is not None and now - self._closed_at >= RECONNECT_S:
            return "its gateway has gone: the connection was closed, and did not come back"
        return None


class Contact:
    """The gateway's side of a lease: how long the host has been silent."""

    def __init__(self, now: float, lease_s: float) -> None:
        self._lease_s = lease_s
        self._heard_at = self._judged_at = now
        # The number of the last answer, for the next turn.
        self.number = 0

    def heard(self, now: float, number: int) -> None:
        """An answer came."""
        self.number = number
        self._heard_at = now

    def judge(self, now: float) -> bool:
        """Whether the host has ended the lease by now. To be called a few times a second."""
        absent_s = now - self._judged_at
        self._judged_at = now
        if absent_s > _absence_s(self._lease_s):
            self._heard_at += absent_s
        return now - self._heard_at >= self._lease_s


# For the host to notice the end of the lease, and for a process to die of SIGKILL.
_SLACK_S: Final = 1.0
_LARGEST_BYTES: Final = 1 << 50


class _End(NamedTuple):
    """A rank must have ended by then."""

    at: float
    reason: str


class Tenants:
    """The ranks under a lease, by their ids. Any news of a rank may come late, or twice."""

    def __init__(self) -> None:
        self._most_bytes: dict[str, int] = {}
        self._ends: dict[str, _End] = {}
        self._unanswered: dict[str, str] = {}
        self._unwanted: dict[str, None] = {}

    def expect(self, rank_id: str, promised_bytes: int) -> None:
        """A rank is about to be started, and may hold so many bytes; 0: it isn't known how many."""
        self._most_bytes[rank_id] = promised_bytes or _LARGEST_BYTES

    def measured(self, rank_id: str, footprint_bytes: int) -> None:
        if rank_id in self._most_bytes:
            self._most_bytes[rank_id] = max(self._most_bytes[rank_id], footprint_bytes)

    def unanswered(self, rank_id: str, reason: str) -> None:
        """It isn't known whether the rank was started. As soon as the host hears that, it ends the
        rank, or doesn't start it; `reason` is for the record of its end.
        """
        if rank_id in self._most_bytes:
            self._unanswered[rank_id] = reason
            self._unwanted[rank_id] = None

    def doubt(self, rank_id: str) -> str | None:
        """The reason, if it isn't known whether the rank was started."""
        return self._unanswered.get(rank_id)

    def disown(self, rank_id: str) -> None:
        """The host is to end the rank as soon as it can be told."""
        if rank_id in self._most_bytes:
            self._unwanted[rank_id] = None

    @property
    def unwanted(self) -> tuple[str, ...]:
        """The ranks that the host is to be told to end."""
        return tuple(self._unwanted)

    def told(self, unwanted: tuple[str, ...], now: float) -> None:
        """The host has heard this. It won't report the end of a rank that was never started."""
        for each in unwanted:
            self._unwanted.pop(each, None)
            if (reason := self.doubt(each)) is not None:
                self._ends_within(each, now, reason)

    def ended(self, rank_id: str) -> None:
        """The rank has ended, or was never started."""
        for each in (self._most_bytes, self._ends, self._unanswered, self._unwanted):
            each.pop(rank_id, None)

    def lose(self, now: float, reason: str) -> None:
        """The lease is over: the host has begun to end all ranks."""
        self._unwanted.clear()
        for each in self._most_bytes:
            self._ends_within(each, now, reason)

    def due(self, now: float) -> list[tuple[str, str]]:
        """The ranks that must have ended by now, each with the reason."""
        due = [(each, end.reason) for each, end in self._ends.items() if now >= end.at]
        for rank_id, _ in due:
            self.ended(rank_id)
        return due

    def _ends_within(self, rank_id: str, now: float, reason: str) -> None:
        most_bytes = self._most_bytes[rank_id]
        rungs = ladder.orphaned(most_bytes)
        gentle_s = sum(each.deadline_s for each in rungs if each.step is LadderStep.TERMINATE)
        # The agent may die meanwhile: then each rank ends by itself.
        at = now + gentle_s + grace_s(most_bytes) + _SLACK_S
        self._ends.setdefault(rank_id, _End(at, reason))
