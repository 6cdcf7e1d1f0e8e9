"""One round of decisions: first on memory beyond limits, then on the claims in their turn.

No I/O and no clock here; times are seconds on the caller's clock, sizes are bytes.
"""

from __future__ import annotations

from typing import Final

from gateway.memory.allocation import Allocation, Prompt
from gateway.memory.ledger import NOISE_BYTES, Claim, Ledger, MemoryOrders
from gateway.memory.loans import IdleEviction, Loans
from gateway.memory.reclaim import Reclaim, enough_to_evict, worth

# A worker that hasn't answered a recall for so long is taken to hang. Workers answer between two
# steps, and the time of a step is bounded, even for a chunk of a prompt.
RECALL_S: Final = 15.0
# A worker over its limit gets so long to shrink while the budget has no room for it.
OVERGROWN_S: Final = 10.0
# A sequence that has no room is refused after this time. It is longer than `OVERGROWN_S`: if the
# worker has leaked, the next worker may have room for the sequence.
HOPELESS_S: Final = 20.0


class AdmissionRound:
    """Makes the decisions of one round: `take_stock` first, `serve` for each claim, then `lend`."""

    def __init__(self, ledger: Ledger, now: float, patience_s: float) -> None:
        self.orders = MemoryOrders(ledger, now)
        self.reclaim = Reclaim(ledger, self.orders, now, patience_s)
        self.loans = Loans(ledger, self.orders, now)
        self._idle_eviction = IdleEviction(ledger, self.orders, self.reclaim, now)
        self._ledger = ledger
        self._now = now
        # The bytes that are free now, and the bytes that are being freed, less the bytes that
        # claims got or wait for. A negative number is a debt to claims. `take_stock` sets both.
        self._unclaimed_bytes: int
        self._coming_bytes: int
        # Bytes that are free or being freed for a claim that waits, by the claim's model.
        self._promised_bytes: dict[str, int] = {}
        self._protected_one = False
        # Bytes that the claims that wait must leave free, because groups keep room.
        self._reserved_bytes = 0

    def take_stock(self) -> None:
        """Account for the memory that workers really hold, and take back what is too much."""
        self._close_recalls()
        self._follow_footprints()
        self._follow_prompts()
        self._refuse_hopeless()
        self._evict_rivals()
        missing_bytes = -self._ledger.free_bytes - self._ledger.coming_bytes
        if missing_bytes > 0:
            self._cover(missing_bytes)
        self._unclaimed_bytes = max(0, self._ledger.free_bytes)
        self._coming_bytes = self._ledger.coming_bytes + min(0, self._ledger.free_bytes)

    def _close_recalls(self) -> None:
        """End recalls that are complete. A worker hangs if it doesn't answer within `RECALL_S`."""
        for allocation in self._ledger.steady:
            if not allocation.returning_bytes:
                if allocation.recalled_at is not None and _is_over(allocation):
                    # The worker can't give back more, so the bytes that it holds become its floor.
                    held_bytes = (
                        allocation.footprint_bytes if self._has_room else allocation.limit_bytes
                    )
                    allocation.stuck_bytes += held_bytes - allocation.floor_bytes
                    allocation.floor_bytes = held_bytes
                allocation.recalled_at = None
            elif (
                allocation.recalled_at is None
                or allocation.obeyed_bytes != allocation.recalled_from_bytes
            ):
                # The recall is new, or the worker has answered an earlier one: wait anew.
                allocation.recalled_at, allocation.recalled_from_bytes = (
                    self._now,
                    allocation.obeyed_bytes,
                )
            elif self._now - allocation.recalled_at >= RECALL_S:
                if allocation.answered:
                    # No reading came after the answer: the last reading counts as one.
                    allocation.read_at_bytes = allocation.obeyed_bytes
                else:
                    self.orders.give_up(allocation, self._now - allocation.recalled_at)

    def _follow_footprints(self) -> None:
        """Raise the limits of workers that exceed them, if the budget has room. If it has none,
        record since when a worker exceeds its limit, be it loaded or still loading. Lower a floor
        by stuck bytes that were given back.
        """
        for allocation in self._ledger.steady:
            loosened_bytes = min(
                allocation.stuck_bytes, allocation.floor_bytes - allocation.footprint_bytes
            )
            if loosened_bytes > 0:
                allocation.stuck_bytes -= loosened_bytes
                allocation.floor_bytes -= loosened_bytes
            if allocation.returning_bytes:
                continue
            if _is_over(allocation) and self._has_room:
                self.orders.lend(allocation, allocation.footprint_bytes)
            self._record_overgrown(allocation)
        for allocation in self._ledger.loading:
            self._record_overgrown(allocation)

    def _record_overgrown(self, allocation: Allocation) -> None:
        if not _is_over(allocation) or self._has_room:
            allocation.overgrown_since = None
            return
        allocation.outgrew_at = self._now
        if allocation.overgrown_since is None:
            allocation.overgrown_since = self._now

    @property
    def _has_room(self) -> bool:
        return self._ledger.free_bytes >= 0

    def _follow_prompts(self) -> None:
        """Record when the prompts of first sequences begin and end."""
        for allocation in self._ledger.steady:
            number, prompt = allocation.need.prompt, allocation.prompt
            if number and (prompt is None or prompt.number != number):
                allocation.prompt = Prompt(number, self._now, in_turn=allocation.turn_begins)
                allocation.turn_begins = False
            elif not number and prompt is not None and prompt.ended_at is None:
                prompt.ended_at = self._now

    def _refuse_hopeless(self) -> None:
        """Refuse the sequences that can never run: other models hold more than at their admission,
        or the worker itself holds more beside its sequences. A worker refuses only the sequences
        that wouldn't have room in the next worker either.
        """
        for allocation in self._ledger.steady:
            possible_bytes = self._ledger.attainable_bytes(allocation.model_id) or 0
            if allocation.need.least_bytes <= max(allocation.limit_bytes, possible_bytes):
                allocation.hopeless_since = None
            elif allocation.hopeless_since is None:
                allocation.hopeless_since = self._now
            elif self._now - allocation.hopeless_since >= HOPELESS_S:
                self.orders.refuse_sequence(allocation, possible_bytes)
                allocation.hopeless_since = self._now

    def _evict_rivals(self) -> None:
        """Evict one of two loaded models that have become rivals by a new configuration."""
        for allocation in sorted(self._ledger.steady, key=self._worth):
            rivals = self._ledger.rivals([allocation.model_id])
            present = [other for other in rivals if not other.ending]
            if present and allocation.evictable:
                self.orders.evict(allocation, present[0].model_id)

    def _worth(self, allocation: Allocation) -> tuple[int, float, float]:
        return worth(allocation, self._now)

    def _cover(self, missing_bytes: int) -> None:
        """Take back the bytes that are held beyond the budget: workers outgrew their limits, or the
        budget shrank.
        """
        steady = sorted(
            self._ledger.steady,
            key=lambda allocation: (allocation.overgrown_since is None, *self._worth(allocation)),
        )
        missing_bytes = self.reclaim.recall_and_evict(missing_bytes, None, steady, steady)
        if missing_bytes <= 0:
            return
        candidates = [*steady, *self._ledger.loading]
        overgrown = [e for e in candidates if e.overgrown_since is not None and not e.ending]
        for allocation in overgrown:
            since = allocation.overgrown_since
            if since is not None and self._now - since >= OVERGROWN_S:
                self.orders.replace(allocation)
                return
        if not overgrown:
            # Only floors are left, and the budget is smaller than their sum.
            missing_bytes -= self._end(
                [allocation for allocation in steady if allocation.evictable_for_any], missing_bytes
            )
            self._end([allocation for allocation in steady if allocation.evictable], missing_bytes)

    def _end(self, candidates: list[Allocation], missing_bytes: int) -> int:
        """Evict as many candidates as are needed to free `missing_bytes`. Returns the bytes that
        their ends will free.
        """
        chosen = enough_to_evict(
            candidates, missing_bytes, self._now, lambda allocation: allocation.freed_by_end_bytes
        )
        brought_bytes = sum(allocation.freed_by_end_bytes for allocation in chosen)
        for allocation in chosen:
            self.orders.evict(allocation, None)
        return brought_bytes

    def loan_claims(self) -> list[Claim]:
        """Claims of loaded models whose next sequence needs more than their limit. Loans alone
        would let some of these models wait for ever.
        """
        claims = []
        for allocation in self._ledger.steady:
            # A claim for more than is possible would wait in vain: such a sequence is refused.
            least_bytes = min(
                allocation.need.least_bytes, self._ledger.possible_for(allocation.model_id)
            )
            if least_bytes <= allocation.limit_bytes:
                allocation.starved_since = None
                continue
            if allocation.starved_since is None:
                # A model that has just been loaded has waited to be loaded for this sequence.
                fresh = self.reclaim.fresh(allocation)
                allocation.starved_since = allocation.claimed_at if fresh else self._now
            claims.append(
                Claim(
                    allocation.model_id,
                    least_bytes - allocation.limit_bytes,
                    allocation.priority,
                    allocation.starved_since,
                    loan=True,
                )
            )
        return claims

    def serve(self, claim: Claim) -> bool:
        """Grant a claim, or begin to make room for it. Return True if the claim is granted."""
        reserved_bytes = self._reserved_from(claim)
        rivals = [] if claim.loan else self._ledger.rivals(claim.model_ids)
        wanted_bytes = claim.needed_bytes + reserved_bytes
        returning_bytes = self._returning_bytes(claim)
        if wanted_bytes > self._unclaimed_bytes + returning_bytes and self._ledger.spare_bytes:
            # The load adopts the spare, or the claim needs the spare's room more.
            self._unclaimed_bytes += self._ledger.spare_bytes
            self._ledger.spare_bytes = 0
        soon_bytes = max(self._unclaimed_bytes, 0) + max(self._coming_bytes, 0) + returning_bytes
        if wanted_bytes > soon_bytes and self._ledger.check is not None:
            self._coming_bytes += self._ledger.check.end()
        if wanted_bytes <= max(self._unclaimed_bytes, 0) + returning_bytes and not rivals:
            self._coming_bytes -= returning_bytes
            self._unclaimed_bytes -= claim.needed_bytes - returning_bytes
            self._grant(claim)
            return True
        before_bytes = self._ledger.coming_bytes
        comes = self.reclaim.evict_rivals(claim, rivals)
        if comes:
            parted_bytes = self._ledger.coming_bytes - before_bytes
            missing_bytes = (
                wanted_bytes - max(self._unclaimed_bytes, 0) - max(self._coming_bytes, 0)
            ) - parted_bytes
            comes = missing_bytes <= 0 or self.reclaim.make_room(claim, missing_bytes)
        if not comes and not self.reclaim.overdue(claim):
            return False  # Busy models are in the way. Later claims may pass until this is overdue.
        allocation = self._ledger.allocation(claim.model_id)
        # Whether the model gives memory back for an earlier claim. If it were protected then, its
        # own claim would come first and take the bytes back, again and again if its worker is slow.
        gives = allocation is not None and returning_bytes < min(
            allocation.returning_bytes, claim.needed_bytes
        )
        if allocation is not None and not gives and (comes or not self._protected_one):
            # A loaded model that waits is protected: if it were displaced, bytes would be freed for
            # it in vain. Of models that wait for each other's end only the first is protected.
            # Otherwise all would wait for ever.
            allocation.protected_at = self._now
            self._protected_one = True
        if comes:
            self._promised_bytes[claim.model_id] = claim.needed_bytes
        self._reserved_bytes = max(self._reserved_bytes, reserved_bytes)
        self._coming_bytes += self._ledger.coming_bytes - before_bytes
        # The claim waits. Bytes that are free or being freed are set aside for it.
        taken_bytes = min(max(self._unclaimed_bytes, 0), claim.needed_bytes)
        self._coming_bytes -= claim.needed_bytes - taken_bytes
        self._unclaimed_bytes -= claim.needed_bytes
        return False

    def _returning_bytes(self, claim: Claim) -> int:
        """Bytes that were called back from the claim's model. The model may keep them, as no
        earlier claim waits for them.
        """
        allocation = self._ledger.allocation(claim.model_id)
        if allocation is None:
            return 0
        returning_bytes = self._coming_bytes - self._ledger.ending_bytes
        return max(0, min(allocation.returning_bytes, claim.needed_bytes, returning_bytes))

    def _reserved_from(self, claim: Claim) -> int:
        """Bytes that the claim must leave free, because groups reserve room. Loans may use that
        room, as they can be called back. The result is 0 if the free, the coming and the lent bytes
        are enough.
        """
        groups = self._ledger.groups
        if claim.loan or all(map(groups.reserved, claim.model_ids)):
            return 0
        reserved_bytes = self._ledger.reserved_beside(claim.model_ids)
        lent_bytes = sum(allocation.lent_bytes for allocation in self._ledger.steady)
        soon_bytes = max(self._unclaimed_bytes, 0) + max(self._coming_bytes, 0) + lent_bytes
        return reserved_bytes if claim.needed_bytes + reserved_bytes > soon_bytes else 0

    def lend(self) -> None:
        """Lend the bytes that no claim waits for."""
        reserved_bytes = min(self._reserved_bytes, max(0, self._unclaimed_bytes))
        free_bytes = self._unclaimed_bytes - reserved_bytes
        coming_bytes = self._coming_bytes - (self._reserved_bytes - reserved_bytes)
        self.loans.lend(free_bytes, coming_bytes, self._promised_bytes)
        self._idle_eviction.serve(coming_bytes)

    def _grant(self, claim: Claim) -> None:
        if not claim.loan:
            for part in claim.single_claims:
                self.orders.admit(part)
        elif (allocation := self._ledger.allocation(claim.model_id)) is not None:
            self.orders.lend(allocation, allocation.limit_bytes + claim.needed_bytes)
            allocation.starved_since = None
            allocation.protected_at = self._now
            allocation.turn_begins = True


def _is_over(allocation: Allocation) -> bool:
    """Whether the model holds more than its limit, beyond noise."""
    return allocation.footprint_bytes - allocation.limit_bytes > NOISE_BYTES
