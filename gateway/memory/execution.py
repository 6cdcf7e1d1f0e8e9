"""What admission has decided, done: models are told, and events tell of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.memory import explain
from gateway.memory.claim import Claim
from gateway.memory.decisions import (
    Admit,
    Decision,
    Evict,
    Limit,
    Refuse,
    Replace,
    Unanswered,
)
from gateway.memory.ledger import Ledger
from gateway.memory.tenant import Tenant
from gateway.system.clock import present_clock
from gateway.system.events import EventLog
from gateway.system.notation import format_size

# A limit that moves by less than both is no event.
_NEWS_BYTES: Final = 64_000_000
_NEWS_SHARE: Final = 0.05


class Execution:
    """On the event loop."""

    def __init__(self, ledger: Ledger, events: EventLog) -> None:
        self._ledger = ledger
        self._events = events
        self._tenants: dict[str, Tenant] = {}
        # What events told of limits.
        self._told_limits: dict[str, int] = {}
        self._clock = present_clock()

    def register(self, tenants: Iterable[Tenant]) -> None:
        self._tenants = {each.model.id: each for each in tenants}

    def gone(self, model_id: str) -> None:
        """Its process has ended, and its limit with it."""
        self._told_limits.pop(model_id, None)

    def perform(self, decision: Decision, claims: dict[str, Claim], reason: str) -> None:
        """`reason` is why somebody has to go, if not for another model."""
        model_id, ledger = decision.model_id, self._ledger
        tenant = self._tenants[model_id]
        match decision:
            case Admit(floor_bytes=floor_bytes):
                self._events.emit(
                    "admit",
                    model_id,
                    floor_bytes=floor_bytes,
                    free_bytes=ledger.free_bytes,
                    waited_s=self._clock.now() - claims[model_id].since,
                    together=sorted(ledger.groups.companions(model_id)) or None,
                )
                tenant.admitted(floor_bytes)
            case Limit(limit_bytes=limit_bytes, recall=recall):
                self._tell_of_limit(model_id, limit_bytes, recall=recall)
                tenant.take_limit(limit_bytes)
            case Evict(for_model_id=other, busy=busy):
                group = None if other is None else ledger.groups.between(model_id, other)
                self._events.emit(
                    "evict",
                    model_id,
                    for_model=other,
                    needed_bytes=claims[other].needed_bytes if other in claims else None,
                    free_bytes=ledger.free_bytes,
                    busy=busy,
                    group=None if group is None else group.name,
                )
                if group is not None:
                    reason = f"evicted: {explain.displaced(model_id, str(other), group)}"
                elif other in claims:
                    needed = format_size(claims[other].needed_bytes)
                    reason = f"evicted: {other!r} needs {needed}"
                elif other is not None:
                    reason = f"evicted: the requests of {other!r} need its memory"
                tenant.evict(reason)
            case Replace(footprint_bytes=footprint_bytes, limit_bytes=limit_bytes):
                self._events.emit(
                    "overgrown",
                    model_id,
                    footprint_bytes=footprint_bytes,
                    limit_bytes=limit_bytes,
                )
                tenant.replace(
                    f"it holds {format_size(footprint_bytes)}, may hold "
                    f"{format_size(limit_bytes)}, and the budget has no room for the difference"
                )
            case Unanswered(seconds=seconds):
                tenant.hangs(f"it has not answered for {seconds:.0f} s that memory is called back")
            case Refuse():
                tenant.has_no_room(explain.no_room(ledger, decision))

    def _tell_of_limit(self, model_id: str, limit_bytes: int, *, recall: bool) -> None:
        """Sequences grow all the time, and their loans with them: not every step is news."""
        holder = self._ledger.holder(model_id)
        known_bytes = self._told_limits.get(model_id)
        if holder is None:
            return
        if known_bytes is None:
            known_bytes = holder.floor_bytes
        if abs(limit_bytes - known_bytes) < max(_NEWS_BYTES, known_bytes * _NEWS_SHARE):
            return
        self._told_limits[model_id] = limit_bytes
        self._events.emit(
            "recall" if recall else "lend",
            model_id,
            lent_bytes=limit_bytes - holder.floor_bytes,
            change_bytes=limit_bytes - known_bytes,
            limit_bytes=limit_bytes,
            free_bytes=self._ledger.free_bytes,
        )
