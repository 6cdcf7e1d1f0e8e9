"""The end of a worker that is not settled yet. No I/O."""

from __future__ import annotations

from typing import Final

from gateway.memory.stranded.account import PROMPT_S, Account
from gateway.memory.stranded.habits import Habits

# Of what the worker had wired: what may be in doubt.
_DOUBT: Final = 0.3


class Question:
    """Whether what it had wired, `before_bytes`, has come back. `hidden_bytes` of that may have,
    behind a rise.
    """

    def __init__(
        self, account: Account, ended_at: float, hidden_bytes: int, *, clean: bool
    ) -> None:
        self.account = account
        self.ended_at = ended_at
        self.before_bytes = account.wired_bytes
        self.hidden_bytes = hidden_bytes
        self.clean = clean
        # Falls that were taken for those of living workers, who have to wire as much again.
        self.owed_bytes: dict[int, int] = {}
        self.open_until = ended_at
        self.suspect = False

    @property
    def allowed_bytes(self) -> int:
        """As much may be in doubt."""
        return int(self.before_bytes * _DOUBT)

    def owe(self, pid: int, size_bytes: int) -> None:
        """A fall that was a living worker's, unless it was this one's."""
        self.owed_bytes[pid] = self.owed_bytes.get(pid, 0) + size_bytes

    def owed_by(self, other: Account | None, pid: int) -> int:
        """What a worker, if it still lives, has not wired again of that."""
        owed_bytes = self.owed_bytes.get(pid, 0)
        if other is None or not other.works or other.changed_at <= self.ended_at:
            return owed_bytes
        return max(0, owed_bytes - other.climbed_bytes)

    def doubt(self, other: Account, habits: Habits, now: float) -> int:
        """What may have come back unseen, as this worker, whose model has these habits, wired it at
        once.
        """
        since = self.ended_at - PROMPT_S
        if habits.unwires and not other.works and now - other.changed_at >= 2 * PROMPT_S:
            # It would have fallen by now.
            return 0
        if other.young_at >= since:
            expected_bytes = self.before_bytes
            if other.model_id != self.account.model_id:
                expected_bytes = int(other.held_bytes * habits.share)
            return max(0, expected_bytes - other.most_bytes)
        return other.missed_bytes if other.works and other.changed_at >= since else 0

    def swap(self, other: Account, habits: Habits, least_bytes: int) -> None:
        """What a successor must have wired unseen, from this many bytes on, came back from this
        one: wired pages stayed where they were. If that is wrong, as much is missing as the
        successor ends.
        """
        account = self.account
        succeeds = other.model_id == account.model_id and other.since >= self.ended_at
        if not succeeds or not habits.firm or not other.tells or not other.works:
            return
        unseen_bytes = int(other.held_bytes * habits.share) - other.most_bytes
        if unseen_bytes > least_bytes:
            swapped_bytes = min(unseen_bytes, account.wired_bytes)
            account.wired_bytes -= swapped_bytes
            other.climb(swapped_bytes)
