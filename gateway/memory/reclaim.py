"""Takes memory from those that have it, where that hurts least.

No I/O and no clock here; times are seconds on the caller's clock, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.memory.claim import Claim
from gateway.memory.holder import Holder
from gateway.memory.ledger import Ledger
from gateway.memory.orders import Orders

# A busy model keeps its place for this part of the patience, and as long as its load took: two that
# displace each other would otherwise do nothing but load.
_SLICE: Final = 0.25
# A prompt that would have to be computed anew is left alone for so many times the patience.
_PROMPT: Final = 10.0
# Who was used just now isn't missed beyond all measure.
_SHORTEST_REST_S: Final = 1.0
# Loads that take less are as cheap as each other.
_CHEAP_S: Final = 10.0


class Reclaim:
    """In one round of decisions: `gateway.memory.admission.Admission` names the order."""

    def __init__(self, ledger: Ledger, orders: Orders, now: float, patience_s: float) -> None:
        self._ledger = ledger
        self._orders = orders
        self._now = now
        self._patience_s = patience_s

    def make_room(self, claim: Claim, missing_bytes: int) -> bool:
        """Whether enough can be called back or evicted; if so, it is."""
        others = [each for each in self._ledger.steady if each.model_id not in claim.model_ids]
        others.sort(key=self._worth)
        rows = [each for each in others if self._may_take_rows(claim, each)]
        busy = [each for each in others if not each.idle and self._may_displace(claim, each)]

        def staying_bytes(holder: Holder) -> int:
            """What it gives unless it has to go while it is busy."""
            if holder.idle and self._may_go(claim, holder):
                return holder.going_bytes
            return self._rows_bytes(claim, holder) if holder in rows else holder.loose_bytes

        # Where busy models have to go in any case, the others give no more than what is missing
        # still.
        over_bytes = missing_bytes - sum(map(staying_bytes, others))
        going = smallest_set(
            busy, over_bytes, self._now, lambda each: each.going_bytes - staying_bytes(each)
        )
        if sum(each.going_bytes - staying_bytes(each) for each in going) < over_bytes:
            return False
        missing_bytes -= sum(each.going_bytes for each in going)
        for each in going:
            self._orders.evict(each, claim.model_id)
        others = [each for each in others if not each.ending]
        self.take(missing_bytes, claim, others, rows)
        return True

    def take(
        self,
        missing_bytes: int,
        claim: Claim | None,
        lenders: list[Holder],
        rows: list[Holder],
    ) -> int:
        """Call back idle loans and then prompt caches, in this order, evict idle models, and call
        back what sequences of `rows` run in. Returns what is missing still.
        """
        for each in lenders:
            missing_bytes -= self._orders.recall_some(each, missing_bytes, each.idle_loan_bytes)
        for each in lenders:
            missing_bytes -= self._orders.recall_some(each, missing_bytes, each.loose_bytes)
        idle = [each for each in lenders if each.idle and self._may_go(claim, each)]
        for each in smallest_set(idle, missing_bytes, self._now, lambda each: each.going_bytes):
            missing_bytes -= each.going_bytes
            self._orders.evict(each, None if claim is None else claim.model_id)
        for each in rows:
            if not each.ending:
                most_bytes = self._rows_bytes(claim, each)
                missing_bytes -= self._orders.recall_some(each, missing_bytes, most_bytes)
        return missing_bytes

    def part(self, claim: Claim, rivals: list[Holder]) -> bool:
        """Have those go that may not be loaded beside it; whether all of them are on their way."""
        staying = [each for each in rivals if not each.ending]
        if not all(self._may_part(claim, each) for each in staying):
            return False
        for each in staying:
            self._orders.evict(each, claim.model_id)
        return True

    def overdue(self, claim: Claim) -> bool:
        return self._now - claim.since >= self._patience_s

    def keeps_place(self, holder: Holder) -> bool:
        """It is busy, and was loaded or got what it waited for too recently to be displaced."""
        if holder.ready_at is None:
            return True
        since = max(holder.own_place, holder.company_placed)
        return not holder.idle and self._now - since < self.kept_s(holder)

    def fresh(self, holder: Holder) -> bool:
        """It has just been loaded."""
        return holder.ready_at is not None and self._now - holder.ready_at < self.kept_s(holder)

    @property
    def slice_s(self) -> float:
        """How long anybody keeps what it has just got."""
        return self._patience_s * _SLICE

    def kept_s(self, holder: Holder) -> float:
        """The same, and at least as long as its load took."""
        return max(self.slice_s, holder.reload_s)

    def _may_take_rows(self, claim: Claim, holder: Holder) -> bool:
        """A floor goes before the loans of equals; a loan before those of a lower priority."""
        if self.overdue(claim):
            return True
        if claim.loan:
            return claim.priority > holder.priority
        if all(map(self._ledger.groups.reserved, claim.model_ids)):
            return True  # The room is its own, and was lent until now.
        return claim.priority >= holder.priority

    def _may_go(self, claim: Claim | None, holder: Holder) -> bool:
        """Nobody's load ends what it is loaded together with."""
        if claim is None:
            return holder.yields
        return holder.yields and holder.model_id not in self._company(claim)

    def _company(self, claim: Claim) -> frozenset[str]:
        return self._ledger.groups.company(claim.model_ids)

    def _may_displace(self, claim: Claim, holder: Holder) -> bool:
        return self._may_go(claim, holder) and self._has_right(claim, holder)

    def _may_part(self, claim: Claim, rival: Holder) -> bool:
        return rival.leaves and (rival.idle or self._has_right(claim, rival))

    def _has_right(self, claim: Claim, holder: Holder) -> bool:
        """To a busy model's place."""
        if self._is_left_alone(claim, holder):
            return False
        return claim.priority > holder.priority or self.overdue(claim)

    def _worth(self, holder: Holder) -> tuple[int, float, float]:
        return worth(holder, self._now)

    def _rows_bytes(self, claim: Claim | None, holder: Holder) -> int:
        """What its running sequences could give back; one may stay while it keeps its place."""
        return holder.rows_bytes if self._is_left_alone(claim, holder) else holder.lent_bytes

    def _is_left_alone(self, claim: Claim | None, holder: Holder) -> bool:
        return self.keeps_place(holder) or (claim is not None and self._finishes(claim, holder))

    def _finishes(self, claim: Claim, holder: Holder) -> bool:
        """Its first sequence computes a prompt, and began that before it was anybody else's turn.
        Without its memory all of that would be done anew, and two that take turns at it would
        finish neither. As long as the prompt took it may then go on.
        """
        prompt = holder.prompt
        if prompt is None or not holder.busy or claim.priority > holder.priority:
            return False
        if not prompt.in_turn and prompt.began_at - claim.since >= self._patience_s:
            return False
        if prompt.ended_at is None:
            return self._now - prompt.began_at < self._patience_s * _PROMPT
        kept_s = max(self.kept_s(holder), prompt.ended_at - prompt.began_at)
        return self._now - prompt.ended_at < kept_s


def worth(holder: Holder, now: float) -> tuple[int, float, float]:
    """How much a model would be missed: the longer its load took, the more; the longer nobody has
    used it, the less, since it will be as long again until somebody does. Of those that load as
    fast as each other the least recently used one is missed least.
    """
    rest_s = max(_SHORTEST_REST_S, now - holder.used_at)
    return (holder.priority, max(_CHEAP_S, holder.reload_s) / rest_s, holder.used_at)


def smallest_set(
    candidates: list[Holder],
    missing_bytes: int,
    now: float,
    brings: Callable[[Holder], int],
) -> list[Holder]:
    """The smallest set that brings so many bytes, idle ones first; all if they don't."""
    chosen: list[Holder] = []
    chosen_bytes = 0
    for holder in sorted(candidates, key=lambda each: (not each.idle, *worth(each, now))):
        if chosen_bytes >= missing_bytes:
            break
        chosen.append(holder)
        chosen_bytes += brings(holder)
    # The last ones may have been large enough to spare some of the first; busy ones foremost.
    for holder in sorted(chosen, key=lambda each: (each.idle, -each.priority)):
        if chosen_bytes - brings(holder) >= missing_bytes:
            chosen.remove(holder)
            chosen_bytes -= brings(holder)
    return chosen
