"""Gives up what is idle for requests that merely want more.

No I/O and no clock here; times are seconds on the caller's clock, sizes are bytes.
"""

from __future__ import annotations

from gateway.memory.holder import Holder
from gateway.memory.ledger import Ledger
from gateway.memory.orders import Orders
from gateway.memory.reclaim import Reclaim, smallest_set


class Wants:
    """In one round of decisions, after what is free was lent.

    Others run meanwhile in the models whose requests these are, so nothing is ended at once. An
    idle model that matters no more goes when both the requests have waited and nobody has used it
    for as long as it would keep its place: that is at least as long as its load took. So a load for
    nothing never costs more than the requests have waited already. The spare goes before.
    """

    def __init__(self, ledger: Ledger, orders: Orders, reclaim: Reclaim, now: float) -> None:
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

    def _is_short(self, holder: Holder) -> bool:
        if not holder.short:
            holder.short_since = None
        elif holder.short_since is None:
            holder.short_since = self._now
        return holder.short_since is not None

    def _make_room(self, holder: Holder, missing_bytes: int) -> int:
        """Returns what will be left of it."""
        if self._ledger.spare_bytes and self._waited(holder, self._reclaim.slice_s):
            given_bytes = min(missing_bytes, self._ledger.spare_bytes)
            self._ledger.spare_bytes = 0
            self._orders.lend(holder, holder.limit_bytes + given_bytes)
            missing_bytes -= given_bytes
        idle = [each for each in self._ledger.steady if self._may_go(holder, each)]
        for each in smallest_set(idle, missing_bytes, self._now, lambda each: each.going_bytes):
            missing_bytes -= each.going_bytes
            self._orders.evict(each, holder.model_id)
        return max(0, -missing_bytes)

    def _may_go(self, holder: Holder, idle: Holder) -> bool:
        if not idle.yields or not idle.idle or idle.priority > holder.priority:
            return False
        kept_s = self._reclaim.kept_s(idle)
        unused_since = max(idle.used_at, idle.ready_at or 0.0)
        return self._waited(holder, kept_s) and self._now - unused_since >= kept_s

    def _waited(self, holder: Holder, seconds: float) -> bool:
        return holder.short_since is not None and self._now - holder.short_since >= seconds
