"""Requests that are computed here for the clients of the gateway before this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.access.caller import ANYBODY
from gateway.models.fleet import Fleet
from gateway.requests.request import Request, RequestState
from gateway.server.upgrade.messages import (
    Began,
    Cancelled,
    Delivered,
    Refused,
    Submitted,
    Told,
    VectorsCame,
)
from gateway.system.refusal import Refusal
from protocol.answers import Delta, Embedded


class Guest(Request):
    """What arrives for it goes on at once: its reader is in another process, and slow there."""

    def __init__(
        self, number: int, model_id: str, state: RequestState, tell: Callable[[Told], None]
    ) -> None:
        super().__init__(state.task, state.terms, state.arrived_at)
        self.restore(state)
        self.number = number
        self.model_id = model_id
        self._tell = tell

    def start(self, now: float) -> None:
        super().start(now)
        self._tell(Began(self.number))

    def deliver(self, delta: Delta, now: float) -> bool:
        super().deliver(delta, now)
        self._parts.clear()
        self._tell(Delivered(self.number, delta))
        return False

    def deliver_vectors(self, part: Embedded) -> None:
        super().deliver_vectors(part)
        self._tell(VectorsCame(self.number, part))

    def refuse(self, refusal: Refusal) -> None:
        if not self.over:
            super().refuse(refusal)
            self._tell(Refused(self.number, refusal.state))


class Guests:
    """Those that have not ended."""

    def __init__(self, tell: Callable[[Told], None]) -> None:
        self._tell = tell
        self._guests: dict[int, Guest] = {}

    def restore(self, model_id: str, states: Iterable[tuple[int, RequestState]]) -> list[Guest]:
        """Those of a model, in their order."""
        guests = [Guest(number, model_id, state, self._tell) for number, state in states]
        self._guests |= {each.number: each for each in guests}
        return guests

    def submit(self, fleet: Fleet, order: Submitted) -> None:
        (guest,) = self.restore(order.model, [(order.number, order.request)])
        try:
            fleet.submit(fleet.roster.find(order.model, ANYBODY), guest)
        except Refusal as refusal:
            guest.refuse(refusal)

    def cancel(self, fleet: Fleet, order: Cancelled) -> None:
        if (guest := self._guests.pop(order.number, None)) is not None:
            _cancel(fleet, guest)

    def leave(self, fleet: Fleet) -> None:
        """Nobody is there any more whom they could be delivered to."""
        for guest in self._guests.values():
            _cancel(fleet, guest)
        self._guests.clear()

    def forget_ended(self) -> None:
        self._guests = {number: each for number, each in self._guests.items() if not each.over}


def _cancel(fleet: Fleet, guest: Guest) -> None:
    if guest.over:
        return
    for compartment in fleet.roster.everyone:
        if compartment.model.id == guest.model_id:
            compartment.traffic.cancel(guest)
