"""How long a rank on another host lives without its gateway, and when the gateway may count the
rank as ended. No I/O. The caller passes the time in seconds; both sides use their own clocks.

The remote program sends a ping every `PING_S`, and the gateway answers each with a pong. The remote
program counts the silence from the ping whose pong came last. The gateway counts from its last
pong, which is never earlier. So the rank's end begins before the gateway counts on it, whichever
messages are late or lost.
"""

from __future__ import annotations

from typing import Final

from gateway.workers import shutdown_steps
from gateway.workers.shutdown_steps import ShutdownStep
from protocol.process import grace_s

PING_S: Final = 1.0
SILENCE_S: Final = 10.0
# The time for the remote program to notice a silence, and for a process to die of SIGKILL.
_SLACK_S: Final = PING_S + 1.0


class Lifeline:
    """The remote program's side."""

    def __init__(self, now: float) -> None:
        self._confirmed_at = now
        self._number = 0
        # The times of pings without a pong, by their numbers.
        self._sent: dict[int, float] = {}

    def ping(self, now: float) -> int:
        """The number of a ping that is sent now."""
        self._number += 1
        self._sent[self._number] = now
        return self._number

    def pong(self, number: int) -> None:
        """Record the pong for a ping."""
        self._confirmed_at = self._sent.get(number, self._confirmed_at)
        self._sent = {
            sent_number: sent_at
            for sent_number, sent_at in self._sent.items()
            if sent_number > number
        }

    def is_cut(self, now: float) -> bool:
        """Whether the rank must end, as the gateway was silent for too long."""
        return now - self._confirmed_at > SILENCE_S


def gone_at(now: float, last_pong_at: float, most_bytes: int) -> float:
    """The time at which a rank has ended for certain, whose session ended `now`. The rank holds
    `most_bytes` at most. If the remote program was killed, the rank ends by itself.
    """
    patience_s = sum(
        timed.deadline_s
        for timed in shutdown_steps.orphaned(most_bytes)
        if timed.step is ShutdownStep.TERMINATE
    )
    end_begins_at = max(now, last_pong_at + SILENCE_S)
    return end_begins_at + patience_s + grace_s(most_bytes) + _SLACK_S
