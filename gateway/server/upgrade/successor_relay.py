"""Requests whose clients are connected to one gateway while the next one computes the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from gateway.access.caller import ANYBODY
from gateway.models.fleet import Fleet
from gateway.requests.progress import ImplausibleError
from gateway.requests.request import Request, RequestState
from gateway.server.upgrade.messages import (
    Began,
    Cancelled,
    Delivered,
    FromSuccessor,
    HandoverMessage,
    Refused,
    Spent,
    Submitted,
    VectorsCame,
)
from gateway.system.refusal import Refusal
from protocol.answers import Delta, Embedded, Usage

Order: TypeAlias = Submitted | Cancelled | Spent


class Relay:
    """The requests of this gateway whose answers the successor computes. Each request has a number
    until it is over. Orders for a successor that doesn't serve yet wait until `open` sends them or
    `undo` returns them. Everything runs on the event loop.
    """

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}
        self._numbers: dict[Request, int] = {}
        self._last = 0
        self._send: Callable[[HandoverMessage], None] | None = None
        self._waiting: list[Order] = []
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> int:
        """Add a request that is handed over, and return its new number."""
        self._last += 1
        self._requests[self._last] = request
        self._numbers[request] = self._last
        return self._last

    def submit(self, model_id: str, request: Request) -> None:
        number = self.add(request)
        self._order(Submitted(number, model_id, request.state))

    def cancel(self, request: Request) -> None:
        if (number := self._numbers.get(request)) is not None:
            self._order(Cancelled(number))
            if self._send is not None:
                self._forget(number)

    def spend(self, name: str, usage: Usage) -> None:
        self._order(Spent(name, usage))

    def open(self, send: Callable[[HandoverMessage], None]) -> None:
        """Send the orders that waited for the successor, which serves now."""
        self._send = send
        waiting, self._waiting = self._waiting, []
        for order in waiting:
            send(order)
            if isinstance(order, Cancelled):
                self._forget(order.number)

    def undo(self) -> Sequence[Order]:
        """The orders that waited, which no successor has received."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def request(self, number: int) -> Request:
        return self._requests[number]

    def receive(self, message: FromSuccessor) -> None:
        match message:
            case Began(number=number) if number in self._requests:
                request, now = self._requests[number], self._loop.time()
                if request.timing.queue_s is None:
                    request.timing.queue_s = now - request.arrived_at
                request.timing.sent(now)
                request.start(now)
            case Delivered(number=number, delta=delta) if number in self._requests:
                request = self._requests[number]
                now = self._loop.time()
                if request.timing.first_token_s is None:
                    request.timing.first_token_s = now - request.arrived_at
                request.timing.enter("tokens", now)
                if request.deliver(delta, now):
                    request.tell(now)
                self._forget_if_over(number)
            case VectorsCame(number=number, part=part) if number in self._requests:
                request = self._requests[number]
                try:
                    request.deliver_vectors(part)
                except ImplausibleError as error:
                    request.refuse(Refusal("internal_error", f"{error}"))
                self._forget_if_over(number)
            case Refused(number=number, refusal=refusal) if number in self._requests:
                self._requests[number].refuse(Refusal.of(refusal))
                self._forget(number)
            case _:
                pass

    def remind(self, now: float, after_s: float) -> None:
        """Remind the readers of requests without news that time passes."""
        for request in self._requests.values():
            request.remind(now, after_s)

    def refuse_all(self, refusal: Refusal) -> None:
        """Refuse all requests, as the successor sends nothing more."""
        for number in list(self._requests):
            self._requests[number].refuse(refusal)
            self._forget(number)

    def _order(self, order: Order) -> None:
        if self._send is None:
            self._waiting.append(order)
        else:
            self._send(order)

    def _forget_if_over(self, number: int) -> None:
        if self._requests[number].over:
            self._forget(number)

    def _forget(self, number: int) -> None:
        if (request := self._requests.pop(number, None)) is not None:
            del self._numbers[request]


class RelayedRequest(Request):
    """A request of the earlier gateway, which is answered here. Parts of the answer are sent to the
    earlier gateway at once, since that gateway has the connection to the client.
    """

    def __init__(
        self,
        number: int,
        model_id: str,
        state: RequestState,
        send: Callable[[HandoverMessage], None],
    ) -> None:
        super().__init__(state.task, state.terms, state.arrived_at)
        self.restore(state)
        self.number = number
        self.model_id = model_id
        self._send = send

    def start(self, now: float) -> None:
        super().start(now)
        self._send(Began(self.number))

    def deliver(self, delta: Delta, now: float) -> bool:
        super().deliver(delta, now)
        self._parts.clear()
        self._send(Delivered(self.number, delta))
        return False

    def deliver_vectors(self, part: Embedded) -> None:
        super().deliver_vectors(part)
        self._send(VectorsCame(self.number, part))

    def refuse(self, refusal: Refusal) -> None:
        if not self.over:
            super().refuse(refusal)
            self._send(Refused(self.number, refusal.state))


class RelayedRequests:
    """The requests of the earlier gateway that have not ended."""

    def __init__(self, send: Callable[[HandoverMessage], None]) -> None:
        self._send = send
        self._requests: dict[int, RelayedRequest] = {}

    def restore(
        self, model_id: str, states: Iterable[tuple[int, RequestState]]
    ) -> list[RelayedRequest]:
        """Continue the requests of a model from their states, in their order."""
        requests = [RelayedRequest(number, model_id, state, self._send) for number, state in states]
        self._requests |= {request.number: request for request in requests}
        return requests

    def submit(self, fleet: Fleet, order: Submitted) -> None:
        (request,) = self.restore(order.model, [(order.number, order.request)])
        try:
            fleet.submit(fleet.roster.find(order.model, ANYBODY), request)
        except Refusal as refusal:
            request.refuse(refusal)

    def cancel(self, fleet: Fleet, number: int) -> None:
        request = self._requests.pop(number, None)
        if request is None or request.over:
            return
        for supervisor in fleet.roster.everyone:
            if supervisor.model.id == request.model_id:
                supervisor.traffic.cancel(request)

    def cancel_all(self, fleet: Fleet) -> None:
        """Cancel all requests, as the earlier gateway has gone."""
        for number in list(self._requests):
            self.cancel(fleet, number)

    def forget_ended(self) -> None:
        self._requests = {
            number: request for number, request in self._requests.items() if not request.over
        }
