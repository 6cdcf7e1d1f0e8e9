"""Lends what nobody waits for, and calls back what others should have of it.

No I/O and no clock here; times are seconds on the caller's clock, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Final

from msgspec import Struct

from gateway.memory.allocation import Allocation
from gateway.memory.ledger import NOISE_BYTES, Ledger, MemoryOrders


class Borrower(Struct, frozen=True):
    """A model that could use `wanted_bytes` beyond its floor."""

    model_id: str
    priority: int
    wanted_bytes: int


def shares(pool_bytes: int, borrowers: Iterable[Borrower]) -> dict[str, int]:
    """What each should have lent of a pool.

    A higher priority is served before a lower one. Among equals it is max-min fair: nobody gets
    more than it wants, and nobody has less than another while it wants more (Bertsekas, Gallager:
    Data Networks, 6.5.2).
    """
    result: dict[str, int] = {}
    left_bytes = max(0, pool_bytes)
    in_order = sorted(borrowers, key=lambda each: (-each.priority, each.wanted_bytes))
    for _, group in groupby(in_order, key=lambda each: each.priority):
        equals = list(group)
        for index, each in enumerate(equals):
            share = min(each.wanted_bytes, left_bytes // (len(equals) - index))
            result[each.model_id] = share
            left_bytes -= share
    return result


# Rows that leave a batch are computed anew: equals take turns at this distance at most, and only
# where one has less than this share of what is fair.
REBALANCE_S: Final = 5.0
_UNFAIR: Final = 0.75
# Between two requests of one client a model is idle for less.
QUIET_S: Final = 1.0
# A worker without a model is started for what has stood idle for so long.
IDLE_LOAN_S: Final = 10.0


class Loans:
    """In one round of decisions, after those that wait for memory have their turn."""

    def __init__(self, ledger: Ledger, orders: MemoryOrders, now: float) -> None:
        self._ledger = ledger
        self._orders = orders
        self._now = now

    def lend(self, free_bytes: int, coming_bytes: int, promised_bytes: Mapping[str, int]) -> None:
        """Share what is free and nobody's by right, and what was lent already. `coming_bytes` are
        on their way back for nobody, and what was promised for those models by name; less than none
        is what comes next and is somebody's already.
        """
        steady = self._ledger.steady
        free_bytes = max(0, free_bytes)
        lent_bytes = sum(each.lent_bytes for each in steady)
        # Without what is coming a share would shrink with each recall, and be called back again.
        targets = self._targets(free_bytes + max(0, coming_bytes) + lent_bytes)
        # What others could use of what stands idle; and what of that is worth putting rows aside.
        short_bytes = unfair_bytes = 0
        for each in sorted(steady, key=lambda e: (-e.priority, e.lent_bytes)):
            if self._now - each.outgrew_at < REBALANCE_S:
                # It would outgrow that too, and give it back at once.
                continue
            target_bytes = targets[each.model_id]
            # Who has work again keeps what it was to give back for nobody.
            returning_bytes = min(each.returning_bytes, coming_bytes - self._ledger.ending_bytes)
            own_bytes = max(0, returning_bytes) if each.busy else 0
            given_bytes = min(target_bytes - each.lent_bytes, free_bytes + own_bytes)
            if given_bytes > 0 and (each.busy or not each.returning_bytes):
                own_bytes = min(given_bytes, own_bytes)
                coming_bytes -= own_bytes
                free_bytes -= given_bytes - own_bytes
                self._orders.lend(each, each.limit_bytes + given_bytes)
            soon_bytes = each.lent_bytes + promised_bytes.get(each.model_id, 0)
            short_bytes += max(0, target_bytes - soon_bytes)
            if soon_bytes < target_bytes * _UNFAIR:
                unfair_bytes += target_bytes - soon_bytes
        short_bytes -= coming_bytes
        unfair_bytes -= coming_bytes
        if coming_bytes < 0:
            # What is called back now would be theirs that wait, and would leave the others short.
            return
        for each in sorted(steady, key=self._is_quiet, reverse=True):
            wanted_bytes = short_bytes if self._is_quiet(each) else unfair_bytes
            if wanted_bytes > NOISE_BYTES:
                given_bytes = self._rebalance(each, wanted_bytes, targets[each.model_id])
                short_bytes -= given_bytes
                unfair_bytes -= given_bytes

    def _targets(self, pool_bytes: int) -> dict[str, int]:
        """What each should have lent: sequences first, and prompt caches of what they leave."""
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
                # Nothing that stands idle keeps more than it has.
                Borrower(
                    e.model_id,
                    e.priority,
                    e.need.cache_wanted_bytes if e.busy else e.need.cache_bytes,
                )
                for e in steady
            ],
        )
        return {model_id: rows[model_id] + caches[model_id] for model_id in rows}

    def take_idle(self, missing_bytes: int) -> None:
        """Of models that nobody has used for a while, for a worker without a model."""
        for each in self._ledger.steady:
            if self._is_idle(each, IDLE_LOAN_S):
                missing_bytes -= self._orders.recall_some(each, missing_bytes, each.idle_loan_bytes)

    def _is_quiet(self, allocation: Allocation) -> bool:
        return self._is_idle(allocation, QUIET_S)

    def _is_idle(self, allocation: Allocation, seconds: float) -> bool:
        return not allocation.busy and self._now - allocation.last_used >= seconds

    def _rebalance(self, allocation: Allocation, short_bytes: int, target_bytes: int) -> int:
        """Call back what a model has beyond its share; returns how much."""
        above_bytes = min(allocation.lent_bytes - target_bytes, allocation.rows_bytes)
        if above_bytes > allocation.loose_bytes:
            if self._now - allocation.rebalanced_at < REBALANCE_S:
                above_bytes = allocation.loose_bytes
            else:
                allocation.rebalanced_at = self._now
        if min(short_bytes, above_bytes) <= NOISE_BYTES and above_bytes < allocation.lent_bytes:
            # Shares move with each recall: steps would become smaller without end.
            return 0
        return self._orders.recall_some(allocation, short_bytes, above_bytes)
