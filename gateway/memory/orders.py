"""Enters what is decided into the account, so that no two decisions use the same bytes.

No I/O and no clock here; times are seconds on the caller's clock, sizes are bytes.
"""

from __future__ import annotations

from typing import Final

from gateway.memory.claim import Claim
from gateway.memory.decisions import Admit, Decision, Evict, Limit, Replace, Unanswered
from gateway.memory.holder import Holder
from gateway.memory.ledger import Ledger

# Differences below this are noise of readings.
NOISE_BYTES: Final = 32_000_000


class Orders:
    """Those of one round."""

    def __init__(self, ledger: Ledger, now: float) -> None:
        self.decisions: list[Decision] = []
        self._ledger = ledger
        self._now = now

    def admit(self, claim: Claim) -> None:
        self._ledger.enter(claim)
        self.decisions.append(Admit(claim.model_id, claim.needed_bytes))

    def lend(self, holder: Holder, limit_bytes: int) -> None:
        self._set_limit(holder, limit_bytes, recall=False)
        if not holder.returning_bytes:
            holder.recalled_at = None

    def recall(self, holder: Holder, limit_bytes: int) -> None:
        if holder.recalled_at is None or holder.answered:
            holder.recalled_at = self._now
            holder.recalled_from_bytes = holder.kept_bytes
        self._set_limit(holder, limit_bytes, recall=True)

    def recall_some(self, holder: Holder, wanted_bytes: int, most_bytes: int) -> int:
        """Call back what is wanted, up to a bound; returns how much."""
        bytes_ = min(wanted_bytes, most_bytes)
        if bytes_ <= 0:
            return 0
        self.recall(holder, holder.limit_bytes - bytes_)
        return bytes_

    def evict(self, holder: Holder, for_model_id: str | None) -> None:
        self._end(holder, Evict(holder.model_id, for_model_id, holder.busy))

    def replace(self, holder: Holder) -> None:
        self._end(holder, Replace(holder.model_id, holder.footprint_bytes, holder.limit_bytes))

    def give_up(self, holder: Holder, seconds: float) -> None:
        """Its worker hasn't answered for so long."""
        self._end(holder, Unanswered(holder.model_id, seconds))

    def _end(self, holder: Holder, decision: Decision) -> None:
        holder.ending = True
        self._untell(holder)
        self.decisions.append(decision)

    def _set_limit(self, holder: Holder, limit_bytes: int, *, recall: bool) -> None:
        """Of several in one round the last is told."""
        holder.limit_bytes = limit_bytes
        self._untell(holder)
        self.decisions.append(Limit(holder.model_id, limit_bytes, recall))

    def _untell(self, holder: Holder) -> None:
        self.decisions = [
            each
            for each in self.decisions
            if not (isinstance(each, Limit) and each.model_id == holder.model_id)
        ]
