"""Evicts idle models for requests that wait in loaded models.

No I/O and no clock here; times are seconds on the caller's clock, sizes are bytes.
"""

from __future__ import annotations

from gateway.memory.allocation import Allocation
from gateway.memory.ledger import Ledger, MemoryOrders
from gateway.memory.reclaim import Reclaim, enough_to_evict


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
        """Make room for the loaded models in which requests wait. `coming_bytes` are being freed
        and promised to no model. A negative number is a debt to claims: nothing is done then.
        """
        short = [
            each
            for each in self._ledger.steady
            if self._is_short(each) and not each.returning_bytes
        ]
        if coming_bytes < 0:
            # The claims would get any room that is made here, and the requests would still wait.
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
        """Make room for a loaded model. Returns the bytes that will be freed beyond its need."""
        if self._ledger.spare_bytes and self._waited(allocation, self._reclaim.slice_s):
            given_bytes = min(missing_bytes, self._ledger.spare_bytes)
            self._ledger.spare_bytes = 0
            self._orders.lend(allocation, allocation.limit_bytes + given_bytes)
            missing_bytes -= given_bytes
        idle = [each for each in self._ledger.steady if self._idle_long_enough(allocation, each)]
        for each in enough_to_evict(idle, missing_bytes, self._now, lambda each: each.going_bytes):
            missing_bytes -= each.going_bytes
            self._orders.evict(each, allocation.model_id)
        return max(0, -missing_bytes)

    def _idle_long_enough(self, allocation: Allocation, idle: Allocation) -> bool:
        if not idle.yields or not idle.idle or idle.priority > allocation.priority:
            return False
        protected_s = self._reclaim.protected_s(idle)
        unused_since = max(idle.used_at, idle.ready_at or 0.0)
        return self._waited(allocation, protected_s) and self._now - unused_since >= protected_s

    def _waited(self, allocation: Allocation, seconds: float) -> bool:
        return allocation.short_since is not None and self._now - allocation.short_since >= seconds
