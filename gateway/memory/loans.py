"""Lends free memory that no claim waits for, calls loans back for models with smaller shares, and
evicts idle models for requests that wait in loaded models.

No I/O and no clock here; times are seconds on the caller's clock, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Final

from msgspec import Struct

from gateway.memory.allocation import Allocation
from gateway.memory.ledger import NOISE_BYTES, Ledger, MemoryOrders
from gateway.memory.reclaim import Reclaim, enough_to_evict


class Borrower(Struct, frozen=True):
    """A model that could use `wanted_bytes` beyond its floor."""

    model_id: str
    priority: int
    wanted_bytes: int


def shares(pool_bytes: int, borrowers: Iterable[Borrower]) -> dict[str, int]:
    """The loan in bytes that each borrower should have of a pool.

    Borrowers of a higher priority are served first. Among borrowers of one priority the shares are
    max-min fair: no borrower gets more than it wants, or less than another one while it wants more
    (Bertsekas, Gallager: Data Networks, 6.5.2).
    """
    result: dict[str, int] = {}
    left_bytes = max(0, pool_bytes)
    in_order = sorted(borrowers, key=lambda borrower: (-borrower.priority, borrower.wanted_bytes))
    for _, group in groupby(in_order, key=lambda borrower: borrower.priority):
        equals = list(group)
        for index, equal in enumerate(equals):
            share = min(equal.wanted_bytes, left_bytes // (len(equals) - index))
            result[equal.model_id] = share
            left_bytes -= share
    return result


# A sequence that leaves its batch has to be computed anew. So a model that was used lately gives
# back memory of its running sequences at most once in `REBALANCE_S`. It gives memory back only for
# models that have less than `_UNFAIR` of their shares.
REBALANCE_S: Final = 5.0
_UNFAIR: Final = 0.75
# Between two requests of one client a model is idle for less than this.
QUIET_S: Final = 1.0
# A loan that was idle for so long is called back for a spare.
IDLE_LOAN_S: Final = 10.0


class Loans:
    """Gives and recalls loans in one round of decisions, after the claims had their turn."""

    def __init__(self, ledger: Ledger, orders: MemoryOrders, now: float) -> None:
        self._ledger = ledger
        self._orders = orders
        self._now = now

    def lend(self, free_bytes: int, coming_bytes: int, promised_bytes: Mapping[str, int]) -> None:
        """Share out a pool: the free bytes that are promised to no model, and all loans.

        `coming_bytes` are being freed, and are promised to no model. If this number is negative,
        claims get the next bytes that are freed, up to its amount. `promised_bytes` maps models to
        the bytes that are being freed for them.
        """
        steady = self._ledger.steady
        free_bytes = max(0, free_bytes)
        lent_bytes = sum(allocation.lent_bytes for allocation in steady)
        # Without the coming bytes each recall would make the pool smaller, and so lead to another.
        targets = self._targets(free_bytes + max(0, coming_bytes) + lent_bytes)
        # `short_bytes` are all bytes that models lack of their targets. `unfair_bytes` are lacked
        # by the models that have less than `_UNFAIR` of their targets.
        short_bytes = unfair_bytes = 0
        for allocation in sorted(steady, key=lambda e: (-e.priority, e.lent_bytes)):
            if self._now - allocation.outgrew_at < REBALANCE_S:
                # The model outgrew its limit lately. It would outgrow a new loan too, and give it
                # back at once.
                continue
            target_bytes = targets[allocation.model_id]
            # A model that has work again keeps recalled bytes that no claim waits for.
            returning_bytes = min(
                allocation.returning_bytes, coming_bytes - self._ledger.ending_bytes
            )
            own_bytes = max(0, returning_bytes) if allocation.busy else 0
            given_bytes = min(target_bytes - allocation.lent_bytes, free_bytes + own_bytes)
            if given_bytes > 0 and (allocation.busy or not allocation.returning_bytes):
                own_bytes = min(given_bytes, own_bytes)
                coming_bytes -= own_bytes
                free_bytes -= given_bytes - own_bytes
                self._orders.lend(allocation, allocation.limit_bytes + given_bytes)
            soon_bytes = allocation.lent_bytes + promised_bytes.get(allocation.model_id, 0)
            short_bytes += max(0, target_bytes - soon_bytes)
            if soon_bytes < target_bytes * _UNFAIR:
                unfair_bytes += target_bytes - soon_bytes
        short_bytes -= coming_bytes
        unfair_bytes -= coming_bytes
        if coming_bytes < 0:
            # The claims would get all bytes that are called back now.
            return
        for allocation in sorted(steady, key=self._is_quiet, reverse=True):
            wanted_bytes = short_bytes if self._is_quiet(allocation) else unfair_bytes
            if wanted_bytes > NOISE_BYTES:
                given_bytes = self._rebalance(
                    allocation, wanted_bytes, targets[allocation.model_id]
                )
                short_bytes -= given_bytes
                unfair_bytes -= given_bytes

    def _targets(self, pool_bytes: int) -> dict[str, int]:
        """The loan that each model should have: its shares for sequences and for prompt caches. The
        sequences of all models come before the prompt caches.
        """
        steady = self._ledger.steady
        rows = shares(
            pool_bytes,
            [
                Borrower(e.model_id, e.priority, max(0, e.need.wanted_bytes - e.floor_bytes))
                for e in steady
            ],
        )
        caches = shares(
            pool_bytes - sum(rows.values()),
            [
                # The prompt cache of an idle model doesn't grow.
                Borrower(
                    e.model_id,
                    e.priority,
                    e.need.cache_wanted_bytes if e.busy else e.need.cache_bytes,
                )
                for e in steady
            ],
        )
        return {model_id: rows[model_id] + caches[model_id] for model_id in rows}

    def recall_idle(self, missing_bytes: int) -> None:
        """Call back loans of models that were idle for `IDLE_LOAN_S`, to have room for a spare."""
        for allocation in self._ledger.steady:
            if self._is_idle(allocation, IDLE_LOAN_S):
                missing_bytes -= self._orders.recall_some(
                    allocation, missing_bytes, allocation.idle_loan_bytes
                )

    def _is_quiet(self, allocation: Allocation) -> bool:
        return self._is_idle(allocation, QUIET_S)

    def _is_idle(self, allocation: Allocation, seconds: float) -> bool:
        return not allocation.busy and self._now - allocation.last_used >= seconds

    def _rebalance(self, allocation: Allocation, short_bytes: int, target_bytes: int) -> int:
        """Call back `short_bytes` of a loan, but no more than it has beyond `target_bytes`. Returns
        the bytes that are called back.
        """
        above_bytes = min(allocation.lent_bytes - target_bytes, allocation.rows_bytes)
        if above_bytes > allocation.unneeded_loan_bytes:
            if self._now - allocation.rebalanced_at < REBALANCE_S:
                above_bytes = allocation.unneeded_loan_bytes
            else:
                allocation.rebalanced_at = self._now
        if min(short_bytes, above_bytes) <= NOISE_BYTES and above_bytes < allocation.lent_bytes:
            # Targets move with each recall: ever smaller recalls would follow without end.
            return 0
        return self._orders.recall_some(allocation, short_bytes, above_bytes)


class IdleEviction:
    """Makes room for requests that wait in loaded models, after free bytes were lent in a round.

    Other requests run in the loaded model meanwhile, so no idle model is evicted at once. An idle
    model of the same or a lower priority is evicted when the requests have waited for its
    `protected_s` and it was unused for its `protected_s`. This time is no shorter than its load, so
    a needless reload costs no more time than the requests have waited. The room of the spare is
    lent earlier.
    """

    def __init__(self, ledger: Ledger, orders: MemoryOrders, reclaim: Reclaim, now: float) -> None:
        self._ledger = ledger
        self._orders = orders
        self._reclaim = reclaim
        self._now = now

    def serve(self, coming_bytes: int) -> None:
        """Make room for the loaded models in which requests wait. `coming_bytes` are being freed,
        and are promised to no model. If claims get the next bytes, this number is negative, and
        nothing is done.
        """
        short = [
            allocation
            for allocation in self._ledger.steady
            if self._is_short(allocation) and not allocation.returning_bytes
        ]
        if coming_bytes < 0:
            # The claims would get any room that is made here, and the requests would still wait.
            return
        for allocation in sorted(short, key=lambda e: (-e.priority, e.short_since)):
            missing_bytes = allocation.need.wanted_bytes - allocation.limit_bytes - coming_bytes
            coming_bytes = max(0, -missing_bytes)
            if missing_bytes > 0:
                coming_bytes += self._make_room(allocation, missing_bytes)

    def _is_short(self, allocation: Allocation) -> bool:
        if not allocation.short:
            allocation.short_since = None
        elif allocation.short_since is None:
            allocation.short_since = self._now
        return allocation.short_since is not None

    def _make_room(self, allocation: Allocation, missing_bytes: int) -> int:
        """Make room for a loaded model. Returns the bytes that will be freed beyond its need."""
        if self._ledger.spare_bytes and self._waited(allocation, self._reclaim.slice_s):
            given_bytes = min(missing_bytes, self._ledger.spare_bytes)
            self._ledger.spare_bytes = 0
            self._orders.lend(allocation, allocation.limit_bytes + given_bytes)
            missing_bytes -= given_bytes
        idle = [
            lender for lender in self._ledger.steady if self._idle_long_enough(allocation, lender)
        ]
        for lender in enough_to_evict(
            idle, missing_bytes, self._now, lambda lender: lender.freed_by_end_bytes
        ):
            missing_bytes -= lender.freed_by_end_bytes
            self._orders.evict(lender, allocation.model_id)
        return max(0, -missing_bytes)

    def _idle_long_enough(self, allocation: Allocation, idle: Allocation) -> bool:
        if not idle.evictable_for_any or not idle.idle or idle.priority > allocation.priority:
            return False
        protected_s = self._reclaim.protected_s(idle)
        unused_since = max(idle.used_at, idle.ready_at or 0.0)
        return self._waited(allocation, protected_s) and self._now - unused_since >= protected_s

    def _waited(self, allocation: Allocation, seconds: float) -> bool:
        return allocation.short_since is not None and self._now - allocation.short_since >= seconds
