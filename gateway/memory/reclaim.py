"""Takes memory back from loaded models, first from those where it costs least.

No I/O and no clock here; times are seconds on the caller's clock, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.memory.allocation import Allocation
from gateway.memory.ledger import Claim, Ledger, MemoryOrders

# A busy model can't be displaced for this share of `patience_s` after it got its memory, or for the
# time that its load took, if that is longer. Otherwise two busy models could displace each other
# without end.
_SLICE: Final = 0.25
# While a model computes a prompt, its memory isn't taken until the prompt has run for this many
# times `patience_s`.
_PROMPT: Final = 10.0
# The least idle time in `worth`. A model that was used just now would have an endless worth.
_SHORTEST_REST_S: Final = 1.0
# The least load time in `worth`. Shorter loads count as equally cheap.
_CHEAP_S: Final = 10.0


class Reclaim:
    """Takes memory from loaded models for the claims of one round, in the order that `Admission`
    lists. To displace a model is to evict it while it is busy.
    """

    def __init__(self, ledger: Ledger, orders: MemoryOrders, now: float, patience_s: float) -> None:
        self._ledger = ledger
        self._orders = orders
        self._now = now
        self._patience_s = patience_s

    def make_room(self, claim: Claim, missing_bytes: int) -> bool:
        """Call back loans and evict models until `missing_bytes` are free for the claim. If all
        loans and models together are too little, do nothing and return False.
        """
        others = [
            allocation
            for allocation in self._ledger.steady
            if allocation.model_id not in claim.model_ids
        ]
        others.sort(key=self._worth)
        models = [other for other in others if self._may_take_rows(claim, other)]
        busy = [other for other in others if not other.idle and self._may_displace(claim, other)]

        def bytes_without_displacing(allocation: Allocation) -> int:
            """Bytes that the model gives if it isn't displaced: all if it is idle and may be
            evicted, otherwise a part of its loan.
            """
            if allocation.idle and self._may_evict_for(claim, allocation):
                return allocation.freed_by_end_bytes
            loan_bytes = (
                self._rows_bytes(claim, allocation)
                if allocation in models
                else allocation.unneeded_loan_bytes
            )
            return max(0, loan_bytes - allocation.outgrown_bytes)

        def bytes_of_displacing(allocation: Allocation) -> int:
            return allocation.freed_by_end_bytes - bytes_without_displacing(allocation)

        # If busy models must be evicted, they go first. Other models then give only the rest.
        uncovered_bytes = missing_bytes - sum(map(bytes_without_displacing, others))
        going = enough_to_evict(busy, uncovered_bytes, self._now, bytes_of_displacing)
        if sum(map(bytes_of_displacing, going)) < uncovered_bytes:
            return False
        missing_bytes -= sum(allocation.freed_by_end_bytes for allocation in going)
        for ending in going:
            self._orders.evict(ending, claim.model_id)
        others = [other for other in others if not other.ending]
        self.recall_and_evict(missing_bytes, claim, others, models)
        return True

    def recall_and_evict(
        self,
        missing_bytes: int,
        claim: Claim | None,
        lenders: list[Allocation],
        models: list[Allocation],
    ) -> int:
        """Take the missing bytes, in this order: idle loans of `lenders`, memory of their prompt
        caches, idle `lenders` (by eviction), memory of the running sequences of the models in
        `models`. Returns the bytes still missing.
        """
        for lender in lenders:
            missing_bytes -= self._orders.recall_some(lender, missing_bytes, lender.idle_loan_bytes)
        for lender in lenders:
            missing_bytes -= self._orders.recall_some(
                lender, missing_bytes, lender.unneeded_loan_bytes
            )
        idle = [
            allocation
            for allocation in lenders
            if allocation.idle and self._may_evict_for(claim, allocation)
        ]
        for allocation in enough_to_evict(
            idle, missing_bytes, self._now, lambda allocation: allocation.freed_by_end_bytes
        ):
            missing_bytes -= allocation.freed_by_end_bytes
            self._orders.evict(allocation, None if claim is None else claim.model_id)
        for model in models:
            if not model.ending:
                most_bytes = self._rows_bytes(claim, model)
                missing_bytes -= self._orders.recall_some(model, missing_bytes, most_bytes)
        return missing_bytes

    def evict_rivals(self, claim: Claim, rivals: list[Allocation]) -> bool:
        """Evict all rivals of the claim's models. Return False, and evict none, if a rival must
        stay.
        """
        staying = [rival for rival in rivals if not rival.ending]
        if not all(self._may_evict_rival(claim, allocation) for allocation in staying):
            return False
        for allocation in staying:
            self._orders.evict(allocation, claim.model_id)
        return True

    def overdue(self, claim: Claim) -> bool:
        return self._now - claim.since >= self._patience_s

    def is_protected(self, allocation: Allocation) -> bool:
        """Whether the model can't be displaced: it is loading, or it is busy and its protection
        lasts. The protection begins when the model or a companion gets its memory.
        """
        if allocation.ready_at is None:
            return True
        since = max(allocation.protection_start, allocation.companions_protected_at)
        return not allocation.idle and self._now - since < self.protected_s(allocation)

    def fresh(self, allocation: Allocation) -> bool:
        """Whether the model has just been loaded."""
        return (
            allocation.ready_at is not None
            and self._now - allocation.ready_at < self.protected_s(allocation)
        )

    @property
    def slice_s(self) -> float:
        """The least time in seconds for which a busy model can't be displaced."""
        return self._patience_s * _SLICE

    def protected_s(self, allocation: Allocation) -> float:
        """Seconds for which this model can't be displaced: `slice_s`, or the time of its load if
        that is longer.
        """
        return max(self.slice_s, allocation.reload_s)

    def _may_take_rows(self, claim: Claim, allocation: Allocation) -> bool:
        """Whether the claim may take memory of the model's running sequences. An overdue claim may.
        An earlier claim for a floor may do so if the model has the same or a lower priority. An
        earlier claim for a loan may do so only if the model has a lower priority.
        """
        if self.overdue(claim):
            return True
        if claim.loan:
            return claim.priority > allocation.priority
        if all(map(self._ledger.groups.reserved, claim.model_ids)):
            return True  # A group keeps this room for the claim's models; it was only lent.
        return claim.priority >= allocation.priority

    def _may_evict_for(self, claim: Claim | None, allocation: Allocation) -> bool:
        """Whether the allocation may be evicted for the claim. A companion of the claim's models
        may not: it is loaded together with them.
        """
        if claim is None:
            return allocation.evictable_for_any
        return allocation.evictable_for_any and allocation.model_id not in self._companions(claim)

    def _companions(self, claim: Claim) -> frozenset[str]:
        return self._ledger.groups.companions_of(claim.model_ids)

    def _may_displace(self, claim: Claim, allocation: Allocation) -> bool:
        return self._may_evict_for(claim, allocation) and self._has_right(claim, allocation)

    def _may_evict_rival(self, claim: Claim, rival: Allocation) -> bool:
        return rival.evictable and (rival.idle or self._has_right(claim, rival))

    def _has_right(self, claim: Claim, allocation: Allocation) -> bool:
        """Whether the claim may displace a busy model."""
        if self._is_left_alone(claim, allocation):
            return False
        return claim.priority > allocation.priority or self.overdue(claim)

    def _worth(self, allocation: Allocation) -> tuple[int, float, float]:
        return worth(allocation, self._now)

    def _rows_bytes(self, claim: Claim | None, allocation: Allocation) -> int:
        """Bytes that the model's loan could give back while sequences run. A model that is left
        alone keeps enough for one sequence.
        """
        return (
            allocation.rows_bytes
            if self._is_left_alone(claim, allocation)
            else allocation.lent_bytes
        )

    def _is_left_alone(self, claim: Claim | None, allocation: Allocation) -> bool:
        return self.is_protected(allocation) or (
            claim is not None and self._finishes(claim, allocation)
        )

    def _finishes(self, claim: Claim, allocation: Allocation) -> bool:
        """Whether the claim has to wait for the model's first sequence.

        The claim waits if the prompt of that sequence began before the claim was overdue, or if the
        model has waited for memory for that prompt. A sequence that loses its memory has to compute
        its prompt from the start. Two models that take memory from each other in turns would so
        never finish a prompt. After the prompt the sequence may run for as long as the prompt took.
        """
        prompt = allocation.prompt
        if prompt is None or not allocation.busy or claim.priority > allocation.priority:
            return False
        if not prompt.in_turn and prompt.began_at - claim.since >= self._patience_s:
            return False
        if prompt.ended_at is None:
            return self._now - prompt.began_at < self._patience_s * _PROMPT
        protected_s = max(self.protected_s(allocation), prompt.ended_at - prompt.began_at)
        return self._now - prompt.ended_at < protected_s


def worth(allocation: Allocation, now: float) -> tuple[int, float, float]:
    """The cost of a model's eviction, as a sort key: its priority, then the time of its load
    divided by its idle time, then its last use. A model that has been idle for long is expected to
    stay idle for as long again.
    """
    rest_s = max(_SHORTEST_REST_S, now - allocation.used_at)
    return (allocation.priority, max(_CHEAP_S, allocation.reload_s) / rest_s, allocation.used_at)


def enough_to_evict(
    candidates: list[Allocation],
    missing_bytes: int,
    now: float,
    brings: Callable[[Allocation], int],
) -> list[Allocation]:
    """The candidates whose evictions free `missing_bytes`: idle ones before busy ones, and those
    with the least `worth` first. No chosen candidate could be left out. If all candidates free too
    little, all are chosen.
    """
    chosen: list[Allocation] = []
    chosen_bytes = 0
    for allocation in sorted(candidates, key=lambda item: (not item.idle, *worth(item, now))):
        if chosen_bytes >= missing_bytes:
            break
        chosen.append(allocation)
        chosen_bytes += brings(allocation)
    # The last candidates may free enough without some of the earlier ones. Busy ones are left out
    # first.
    for allocation in sorted(chosen, key=lambda item: (item.idle, -item.priority)):
        if chosen_bytes - brings(allocation) >= missing_bytes:
            chosen.remove(allocation)
            chosen_bytes -= brings(allocation)
    return chosen
