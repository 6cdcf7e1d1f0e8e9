"""Leases: how long ranks on another host live without their gateway, and when the gateway may count
a silent rank as ended. No I/O. The caller passes the time in seconds; gateway and agent each use
their own clock.

The gateway asks for news in turns, and confirms with each turn the last answer that it got. The
agent counts the lease from the time when it gave the last confirmed answer. The gateway counts from
the time when it got its last answer, which is never earlier. So the lease ends for the agent first,
whichever messages are lost.

As long as the gateway hears the agent, the agent reports how each rank ended. After the end of the
lease the agent ends the ranks by itself, and the gateway waits for as long as that takes. So the
gateway counts no rank as ended that may be alive.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gateway.workers import shutdown_steps
from gateway.workers.shutdown_steps import ShutdownStep
from protocol.process import grace_s

# After its connection was closed, a gateway must connect again within this time. Mostly the gateway
# has died.
RECONNECT_S: Final = 1.0
# If the time between two calls of `judge` is longer than this part of the lease, this process was
# stopped or asleep.
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
        # The times of answers that aren't confirmed yet, by the numbers of the answers.
        self._answered: dict[int, float] = {}
        self._closed_at: float | None = None
        self._judged_at = now

    def turn(self, confirmed: int) -> bool:
        """Note a turn of the gateway, which confirms the answer with this number. Returns whether
        the gateway lacks a later answer.
        """
        self._closed_at = None
        answered_at = self._answered.get(confirmed)
        if answered_at is not None:
            self._expires_at = answered_at + self.lease_s
        self._answered = {k: at for k, at in self._answered.items() if k > confirmed}
        return bool(self._answered)

    def answer(self, now: float) -> int:
        """Note an answer that is given now, and return its number."""
        self._number += 1
        self._answered[self._number] = now
        return self._number

    def closed(self, now: float) -> None:
        """Note that the connection of a turn was closed."""
        if self._closed_at is None:
            self._closed_at = now

    def judge(self, now: float) -> str | None:
        """Why the ranks must end; None: they may go on. To be called a few times a second."""
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
        # The number of the last answer, which the next turn confirms.
        self.number = 0

    def heard(self, now: float, number: int) -> None:
        """Note an answer of the agent."""
        self.number = number
        self._heard_at = now

    def judge(self, now: float) -> bool:
        """Whether the agent has ended the lease by now. To be called a few times a second."""
        absent_s = now - self._judged_at
        self._judged_at = now
        if absent_s > _absence_s(self._lease_s):
            self._heard_at += absent_s
        return now - self._heard_at >= self._lease_s


# The time for the agent to notice the end of the lease, and for a process to die of SIGKILL.
_SLACK_S: Final = 1.0
_LARGEST_BYTES: Final = 1 << 50


class _End(NamedTuple):
    """The time by which a rank must have ended, and why it ends."""

    at: float
    reason: str


class Tenants:
    """The gateway's list of ranks under a lease, by their ids. Any news of a rank may come late, or
    twice.
    """

    def __init__(self) -> None:
        self._most_bytes: dict[str, int] = {}
        self._ends: dict[str, _End] = {}
        self._unanswered: dict[str, str] = {}
        self._unwanted: dict[str, None] = {}

    def expect(self, rank_id: str, promised_bytes: int) -> None:
        """Add a rank that is about to be started, and that may hold `promised_bytes`; 0: the bytes
        are not known.
        """
        self._most_bytes[rank_id] = promised_bytes or _LARGEST_BYTES

    def measured(self, rank_id: str, footprint_bytes: int) -> None:
        if rank_id in self._most_bytes:
            self._most_bytes[rank_id] = max(self._most_bytes[rank_id], footprint_bytes)

    def unanswered(self, rank_id: str, reason: str) -> None:
        """Note that the agent hasn't answered the order to start a rank, which may run or not. A
        later turn tells the agent to end the rank, or not to start it. `reason` is for the record
        of the rank's end.
        """
        if rank_id in self._most_bytes:
            self._unanswered[rank_id] = reason
            self._unwanted[rank_id] = None

    def doubt(self, rank_id: str) -> str | None:
        """Why it isn't known whether the rank was started; None: it is known."""
        return self._unanswered.get(rank_id)

    def disown(self, rank_id: str) -> None:
        """Have the next turn tell the agent to end the rank."""
        if rank_id in self._most_bytes:
            self._unwanted[rank_id] = None

    @property
    def unwanted(self) -> tuple[str, ...]:
        """The ranks that the next turn tells the agent to end."""
        return tuple(self._unwanted)

    def told(self, unwanted: tuple[str, ...], now: float) -> None:
        """Note that a turn has told the agent to end the `unwanted` ranks. The agent reports no end
        of a rank that was never started, so such a rank counts as ended after a time.
        """
        for each in unwanted:
            self._unwanted.pop(each, None)
            if (reason := self.doubt(each)) is not None:
                self._ends_within(each, now, reason)

    def ended(self, rank_id: str) -> None:
        """Remove a rank that has ended, or was never started."""
        for each in (self._most_bytes, self._ends, self._unanswered, self._unwanted):
            each.pop(rank_id, None)

    def lose(self, now: float, reason: str) -> None:
        """Note that the lease is over: the agent has begun to end all ranks."""
        self._unwanted.clear()
        for each in self._most_bytes:
            self._ends_within(each, now, reason)

    def due(self, now: float) -> list[tuple[str, str]]:
        """Remove the ranks that must have ended by now, and return them, each with the reason."""
        due = [(each, end.reason) for each, end in self._ends.items() if now >= end.at]
        for rank_id, _ in due:
            self.ended(rank_id)
        return due

    def _ends_within(self, rank_id: str, now: float, reason: str) -> None:
        most_bytes = self._most_bytes[rank_id]
        rungs = shutdown_steps.orphaned(most_bytes)
        gentle_s = sum(each.deadline_s for each in rungs if each.step is ShutdownStep.TERMINATE)
        # If the agent dies meanwhile, each rank ends by itself within `grace_s`.
        at = now + gentle_s + grace_s(most_bytes) + _SLACK_S
        self._ends.setdefault(rank_id, _End(at, reason))
