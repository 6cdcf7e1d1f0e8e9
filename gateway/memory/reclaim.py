"""Takes memory from those that have it, where that hurts least.

No I/O and no clock here; times are seconds on the caller's clock, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.memory.allocation import Allocation
from gateway.memory.ledger import Claim, Ledger, MemoryOrders

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

    def __init__(self, ledger: Ledger, orders: MemoryOrders, now: float, patience_s: float) -> None:
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

        def staying_bytes(allocation: Allocation) -> int:
            """What it gives unless it has to go while it is busy."""
            if allocation.idle and self._may_go(claim, allocation):
                return allocation.going_bytes
            return (
                self._rows_bytes(claim, allocation)
                if allocation in rows
                else allocation.loose_bytes
            )

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
        lenders: list[Allocation],
        rows: list[Allocation],
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

    def part(self, claim: Claim, rivals: list[Allocation]) -> bool:
        """Have those go that may not be loaded beside it; whether all of them are on their way."""
        staying = [each for each in rivals if not each.ending]
        if not all(self._may_part(claim, each) for each in staying):
            return False
        for each in staying:
            self._orders.evict(each, claim.model_id)
        return True

    def overdue(self, claim: Claim) -> bool:
        return self._now - claim.since >= self._patience_s

    def keeps_place(self, allocation: Allocation) -> bool:
        """It is busy, and was loaded or got what it waited for too recently to be displaced."""
        if allocation.ready_at is None:
            return True
        since = max(allocation.own_place, allocation.companions_placed)
        return not allocation.idle and self._now - since < self.kept_s(allocation)

    def fresh(self, allocation: Allocation) -> bool:
        """It has just been loaded."""
        return allocation.ready_at is not None and self._now - allocation.ready_at < self.kept_s(
            allocation
        )

    @property
    def slice_s(self) -> float:
        """How long anybody keeps what it has just got."""
        return self._patience_s * _SLICE

    def kept_s(self, allocation: Allocation) -> float:
        """The same, and at least as long as its load took."""
        return max(self.slice_s, allocation.reload_s)

    def _may_take_rows(self, claim: Claim, allocation: Allocation) -> bool:
        """A floor goes before the loans of equals; a loan before those of a lower priority."""
        if self.overdue(claim):
            return True
        if claim.loan:
            return claim.priority > allocation.priority
        if all(map(self._ledger.groups.reserved, claim.model_ids)):
            return True  # The room is its own, and was lent until now.
        return claim.priority >= allocation.priority

    def _may_go(self, claim: Claim | None, allocation: Allocation) -> bool:
        """Nobody's load ends what it is loaded together with."""
        if claim is None:
            return allocation.yields
        return allocation.yields and allocation.model_id not in self._companions(claim)

    def _companions(self, claim: Claim) -> frozenset[str]:
        return self._ledger.groups.companions_of(claim.model_ids)

    def _may_displace(self, claim: Claim, allocation: Allocation) -> bool:
        return self._may_go(claim, allocation) and self._has_right(claim, allocation)

    def _may_part(self, claim: Claim, rival: Allocation) -> bool:
        return rival.leaves and (rival.idle or self._has_right(claim, rival))

    def _has_right(self, claim: Claim, allocation: Allocation) -> bool:
        """To a busy model's place."""
        if self._is_left_alone(claim, allocation):
            return False
        return claim.priority > allocation.priority or self.overdue(claim)

    def _worth(self, allocation: Allocation) -> tuple[int, float, float]:
        return worth(allocation, self._now)

    def _rows_bytes(self, claim: Claim | None, allocation: Allocation) -> int:
        """What its running sequences could give back; one may stay while it keeps its place."""
        return (
            allocation.rows_bytes
            if self._is_left_alone(claim, allocation)
            else allocation.lent_bytes
        )

    def _is_left_alone(self, claim: Claim | None, allocation: Allocation) -> bool:
        return self.keeps_place(allocation) or (
            claim is not None and self._finishes(claim, allocation)
        )

    def _finishes(self, claim: Claim, allocation: Allocation) -> bool:
        """Its first sequence computes a prompt, and began that before it was anybody else's turn.
        Without its memory all of that would be done anew, and two that take turns at it would
        finish neither. As long as the prompt took it may then go on.
        """
        prompt = allocation.prompt
        if prompt is None or not allocation.busy or claim.priority > allocation.priority:
            return False
        if not prompt.in_turn and prompt.began_at - claim.since >= self._patience_s:
            return False
        if prompt.ended_at is None:
            return self._now - prompt.began_at < self._patience_s * _PROMPT
        kept_s = max(self.kept_s(allocation), prompt.ended_at - prompt.began_at)
        return self._now - prompt.ended_at < kept_s


def worth(allocation: Allocation, now: float) -> tuple[int, float, float]:
    """How much a model would be missed: the longer its load took, the more; the longer nobody has
    used it, the less, since it will be as long again until somebody does. Of those that load as
    fast as each other the least recently used one is missed least.
    """
    rest_s = max(_SHORTEST_REST_S, now - allocation.used_at)
    return (allocation.priority, max(_CHEAP_S, allocation.reload_s) / rest_s, allocation.used_at)


def smallest_set(
    candidates: list[Allocation],
    missing_bytes: int,
    now: float,
    brings: Callable[[Allocation], int],
) -> list[Allocation]:
    """The smallest set that brings so many bytes, idle ones first; all if they don't."""
    chosen: list[Allocation] = []
    chosen_bytes = 0
    for allocation in sorted(candidates, key=lambda each: (not each.idle, *worth(each, now))):
        if chosen_bytes >= missing_bytes:
            break
        chosen.append(allocation)
        chosen_bytes += brings(allocation)
    # The last ones may have been large enough to spare some of the first; busy ones foremost.
    for allocation in sorted(chosen, key=lambda each: (each.idle, -each.priority)):
        if chosen_bytes - brings(allocation) >= missing_bytes:
            chosen.remove(allocation)
            chosen_bytes -= brings(allocation)
    return chosen


class IdleEviction:
    """In one round of decisions, after what is free was lent.

    Others run meanwhile in the models whose requests these are, so nothing is ended at once. An
    idle model that matters no more goes when both the requests have waited and nobody has used it
    for as long as it would keep its place: that is at least as long as its load took. So a load for
    nothing never costs more than the requests have waited already. The spare goes before.
    """

    def __init__(self, ledger: Ledger, orders: MemoryOrders, reclaim: Reclaim, now: float) -> None:
        self._ledger = ledger
        self._orders = orders
        self._reclaim = reclaim
        self._now = now

    def serve(self, coming_bytes: int) -> None:
        """`coming_bytes` are on their way back for nobody; less than none is what comes next and is
        somebody's already.
        """
        short = [
            each
            for each in self._ledger.steady
            if self._is_short(each) and not each.returning_bytes
        ]
        if coming_bytes < 0:
            # Those that wait would get the room, and these would ask for more.
            return
        for each in sorted(short, key=lambda e: (-e.priority, e.short_since)):
            missing_bytes = each.need.wanted_bytes - each.limit_bytes - coming_bytes
            coming_bytes = max(0, -missing_bytes)
            if missing_bytes > 0:
                coming_bytes += self._make_room(each, missing_bytes)

    def _is_short(self, allocation: Allocation) -> bool:
        if not allocation.short:
            allocation.short_since = None
        elif allocation.short_since is None:
            allocation.short_since = self._now
        return allocation.short_since is not None

    def _make_room(self, allocation: Allocation, missing_bytes: int) -> int:
        """Returns what will be left of it."""
        if self._ledger.spare_bytes and self._waited(allocation, self._reclaim.slice_s):
            given_bytes = min(missing_bytes, self._ledger.spare_bytes)
            self._ledger.spare_bytes = 0
            self._orders.lend(allocation, allocation.limit_bytes + given_bytes)
            missing_bytes -= given_bytes
        idle = [each for each in self._ledger.steady if self._may_go(allocation, each)]
        for each in smallest_set(idle, missing_bytes, self._now, lambda each: each.going_bytes):
            missing_bytes -= each.going_bytes
            self._orders.evict(each, allocation.model_id)
        return max(0, -missing_bytes)

    def _may_go(self, allocation: Allocation, idle: Allocation) -> bool:
        if not idle.yields or not idle.idle or idle.priority > allocation.priority:
            return False
        kept_s = self._reclaim.kept_s(idle)
        unused_since = max(idle.used_at, idle.ready_at or 0.0)
        return self._waited(allocation, kept_s) and self._now - unused_since >= kept_s

    def _waited(self, allocation: Allocation, seconds: float) -> bool:
        return allocation.short_since is not None and self._now - allocation.short_since >= seconds
