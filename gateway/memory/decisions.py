"""What admission decides.

Sizes are bytes.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from gateway.memory.allocation import Allocation
from gateway.memory.ledger import Claim, Ledger


class Admit(Struct, frozen=True):
    """It may start; the bytes of its floor are reserved."""

    model_id: str
    floor_bytes: int


class LimitChange(Struct, frozen=True):
    """It may hold so much from now on: more if something was lent, less if that is called back."""

    model_id: str
    limit_bytes: int
    recall: bool


class Evict(Struct, frozen=True):
    """It has to go, for another or since the budget doesn't hold it any more; nothing is free until
    it is gone.
    """

    model_id: str
    for_model_id: str | None
    busy: bool


class Replace(Struct, frozen=True):
    """It holds more than its limit, the budget has no room for that, and it did not shrink."""

    model_id: str
    footprint_bytes: int
    limit_bytes: int


class Unanswered(Struct, frozen=True):
    """It was told to give memory back and has not said that it does."""

    model_id: str
    seconds: float


class Refuse(Struct, frozen=True):
    """It can't be admitted whatever is evicted. `needed_bytes` are its own and those of the models
    that it is loaded `together` with.
    """

    model_id: str
    needed_bytes: int
    possible_bytes: int
    together: tuple[str, ...] = ()


Decision: TypeAlias = Admit | LimitChange | Evict | Replace | Unanswered | Refuse


# Differences below this are noise of readings.
NOISE_BYTES: Final = 32_000_000


class MemoryOrders:
    """Those of one round."""

    def __init__(self, ledger: Ledger, now: float) -> None:
        self.decisions: list[Decision] = []
        self._ledger = ledger
        self._now = now

    def admit(self, claim: Claim) -> None:
        self._ledger.enter(claim)
        self.decisions.append(Admit(claim.model_id, claim.needed_bytes))

    def lend(self, allocation: Allocation, limit_bytes: int) -> None:
        self._set_limit(allocation, limit_bytes, recall=False)
        if not allocation.returning_bytes:
            allocation.recalled_at = None

    def recall(self, allocation: Allocation, limit_bytes: int) -> None:
        if allocation.recalled_at is None or allocation.answered:
            allocation.recalled_at = self._now
            allocation.recalled_from_bytes = allocation.kept_bytes
        self._set_limit(allocation, limit_bytes, recall=True)

    def recall_some(self, allocation: Allocation, wanted_bytes: int, most_bytes: int) -> int:
        """Call back what is wanted, up to a bound; returns how much."""
        bytes_ = min(wanted_bytes, most_bytes)
        if bytes_ <= 0:
            return 0
        self.recall(allocation, allocation.limit_bytes - bytes_)
        return bytes_

    def evict(self, allocation: Allocation, for_model_id: str | None) -> None:
        self._end(allocation, Evict(allocation.model_id, for_model_id, allocation.busy))

    def replace(self, allocation: Allocation) -> None:
        self._end(
            allocation,
            Replace(allocation.model_id, allocation.footprint_bytes, allocation.limit_bytes),
        )

    def give_up(self, allocation: Allocation, seconds: float) -> None:
        """Its worker hasn't answered for so long."""
        self._end(allocation, Unanswered(allocation.model_id, seconds))

    def _end(self, allocation: Allocation, decision: Decision) -> None:
        allocation.ending = True
        self._untell(allocation)
        self.decisions.append(decision)

    def _set_limit(self, allocation: Allocation, limit_bytes: int, *, recall: bool) -> None:
        """Of several in one round the last is told."""
        allocation.limit_bytes = limit_bytes
        self._untell(allocation)
        self.decisions.append(LimitChange(allocation.model_id, limit_bytes, recall))

    def _untell(self, allocation: Allocation) -> None:
        self.decisions = [
            each
            for each in self.decisions
            if not (isinstance(each, LimitChange) and each.model_id == allocation.model_id)
        ]
