"""Takes memory back from models, where that hurts least.

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
# A model whose prompt would be computed anew is left alone for so many times the patience.
_PROMPT: Final = 10.0
# A model that was used just now isn't missed beyond all measure.
_SHORTEST_REST_S: Final = 1.0
# Loads that take less are as cheap as each other.
_CHEAP_S: Final = 10.0


class Reclaim:
    """The memory that claims take in one round, in the order that `Admission` names."""

    def __init__(self, ledger: Ledger, orders: MemoryOrders, now: float, patience_s: float) -> None:
        self._ledger = ledger
        self._orders = orders
        self._now = now
        self._patience_s = patience_s

    def make_room(self, claim: Claim, missing_bytes: int) -> bool:
        """Call back and evict for a claim; False, with nothing done, if that can't bring enough."""
        others = [each for each in self._ledger.steady if each.model_id not in claim.model_ids]
        others.sort(key=self._worth)
        rows = [each for each in others if self._may_take_rows(claim, each)]
        busy = [each for each in others if not each.idle and self._may_displace(claim, each)]

        def staying_bytes(allocation: Allocation) -> int:
            """Bytes that it can give without being evicted while it is busy."""
            if allocation.idle and self._may_go(claim, allocation):
                return allocation.going_bytes
            return (
                self._rows_bytes(claim, allocation)
                if allocation in rows
                else allocation.loose_bytes
            )

        # Where busy models have to go in any case, the others give only the bytes still missing.
        over_bytes = missing_bytes - sum(map(staying_bytes, others))
        going = enough_to_evict(
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
        """Call back idle loans and then prompt caches, evict idle models, and call back the memory
        of running sequences of `rows`, in this order. Returns the bytes still missing.
        """
        for each in lenders:
            missing_bytes -= self._orders.recall_some(each, missing_bytes, each.idle_loan_bytes)
        for each in lenders:
            missing_bytes -= self._orders.recall_some(each, missing_bytes, each.loose_bytes)
        idle = [each for each in lenders if each.idle and self._may_go(claim, each)]
        for each in enough_to_evict(idle, missing_bytes, self._now, lambda each: each.going_bytes):
            missing_bytes -= each.going_bytes
            self._orders.evict(each, None if claim is None else claim.model_id)
        for each in rows:
            if not each.ending:
                most_bytes = self._rows_bytes(claim, each)
                missing_bytes -= self._orders.recall_some(each, missing_bytes, most_bytes)
        return missing_bytes

    def evict_rivals(self, claim: Claim, rivals: list[Allocation]) -> bool:
        """Evict the models that may not be loaded beside it; False, and none is, if one stays."""
        staying = [each for each in rivals if not each.ending]
        if not all(self._may_evict_rival(claim, each) for each in staying):
            return False
        for each in staying:
            self._orders.evict(each, claim.model_id)
        return True

    def overdue(self, claim: Claim) -> bool:
        return self._now - claim.since >= self._patience_s

    def keeps_place(self, allocation: Allocation) -> bool:
        """It is busy, and got its place too recently to be displaced."""
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
        """How long a model keeps memory that it has just got."""
        return self._patience_s * _SLICE

    def kept_s(self, allocation: Allocation) -> float:
        """How long this model keeps it: at least as long as its load took."""
        return max(self.slice_s, allocation.reload_s)

    def _may_take_rows(self, claim: Claim, allocation: Allocation) -> bool:
        """A floor comes before loans of equals, a loan only before those of a lower priority."""
        if self.overdue(claim):
            return True
        if claim.loan:
            return claim.priority > allocation.priority
        if all(map(self._ledger.groups.reserved, claim.model_ids)):
            return True  # The room is its own, and was lent until now.
        return claim.priority >= allocation.priority

    def _may_go(self, claim: Claim | None, allocation: Allocation) -> bool:
        """It yields, unless the claim is of a model that it is loaded with."""
        if claim is None:
            return allocation.yields
        return allocation.yields and allocation.model_id not in self._companions(claim)

    def _companions(self, claim: Claim) -> frozenset[str]:
        return self._ledger.groups.companions_of(claim.model_ids)

    def _may_displace(self, claim: Claim, allocation: Allocation) -> bool:
        return self._may_go(claim, allocation) and self._has_right(claim, allocation)

    def _may_evict_rival(self, claim: Claim, rival: Allocation) -> bool:
        return rival.leaves and (rival.idle or self._has_right(claim, rival))

    def _has_right(self, claim: Claim, allocation: Allocation) -> bool:
        """Whether the claim may take a busy model's place."""
        if self._is_left_alone(claim, allocation):
            return False
        return claim.priority > allocation.priority or self.overdue(claim)

    def _worth(self, allocation: Allocation) -> tuple[int, float, float]:
        return worth(allocation, self._now)

    def _rows_bytes(self, claim: Claim | None, allocation: Allocation) -> int:
        """Bytes that its sequences could give back; one keeps running while it keeps its place."""
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
        """Its first sequence computes a prompt that it began before the claim's turn. Without its
        memory it would begin anew, and two models that take turns so would finish neither. When
        the prompt is computed it may go on for as long as that took.
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
    """How much a model would be missed: the more, the longer its load took; the less, the longer it
    was not used, as it will probably not be used for as long again. Of models that load equally
    fast the least recently used one is missed least.
    """
    rest_s = max(_SHORTEST_REST_S, now - allocation.used_at)
    return (allocation.priority, max(_CHEAP_S, allocation.reload_s) / rest_s, allocation.used_at)


def enough_to_evict(
    candidates: list[Allocation],
    missing_bytes: int,
    now: float,
    brings: Callable[[Allocation], int],
) -> list[Allocation]:
    """Candidates that bring so many bytes, with none to spare: idle ones first, then those that are
    missed least. All of them, if they bring less.
    """
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
    """Makes room for requests that wait in loaded models, after free bytes were lent in a round.

    Other requests run in these models meanwhile, so no model is evicted at once. An idle model with
    no higher priority goes when the requests have waited, and it was not used, for as long as it
    would keep its place: at least as long as its load took. So a load in vain never costs more than
    the requests have waited already. The spare goes before.
    """

    def __init__(self, ledger: Ledger, orders: MemoryOrders, reclaim: Reclaim, now: float) -> None:
        self._ledger = ledger
        self._orders = orders
        self._reclaim = reclaim
        self._now = now

    def serve(self, coming_bytes: int) -> None:
        """`coming_bytes` are being freed, and promised to no model; if they are negative, models
        that wait get the next ones.
        """
        short = [
            each
            for each in self._ledger.steady
            if self._is_short(each) and not each.returning_bytes
        ]
        if coming_bytes < 0:
            # Models that wait would get the room, and these would ask for more.
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
        """Returns how many bytes of the room will be left."""
        if self._ledger.spare_bytes and self._waited(allocation, self._reclaim.slice_s):
            given_bytes = min(missing_bytes, self._ledger.spare_bytes)
            self._ledger.spare_bytes = 0
            self._orders.lend(allocation, allocation.limit_bytes + given_bytes)
            missing_bytes -= given_bytes
        idle = [each for each in self._ledger.steady if self._may_go(allocation, each)]
        for each in enough_to_evict(idle, missing_bytes, self._now, lambda each: each.going_bytes):
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
