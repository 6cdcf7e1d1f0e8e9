"""Requests whose clients are connected here, and which another gateway has computed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from gateway.requests.progress import ImplausibleError
from gateway.requests.request import Request
from gateway.server.upgrade.messages import (
    Began,
    Cancelled,
    Delivered,
    FromSuccessor,
    Refused,
    Spent,
    Submitted,
    Told,
    VectorsCame,
)
from gateway.system.refusal import Refusal
from protocol.answers import Usage

Order: TypeAlias = Submitted | Cancelled | Spent


class Relay:
    """Numbers requests, and keeps them until they are over. What it has for a successor that
    doesn't serve yet waits until `open`, or is undone by `undo`. Everything runs on the event loop.
    """

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}
        self._numbers: dict[Request, int] = {}
        self._last = 0
        self._send: Callable[[Told], None] | None = None
        self._waiting: list[Order] = []
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._requests)

    def number(self, request: Request) -> int:
        """Of one that is handed over."""
        self._last += 1
        self._requests[self._last] = request
        self._numbers[request] = self._last
        return self._last

    def submit(self, model_id: str, request: Request) -> None:
        number = self.number(request)
        self._order(Submitted(number, model_id, request.state))

    def cancel(self, request: Request) -> None:
        if (number := self._numbers.get(request)) is not None:
            self._order(Cancelled(number))
            if self._send is not None:
                self._forget(number)

    def spend(self, name: str, usage: Usage) -> None:
        self._order(Spent(name, usage))

    def open(self, send: Callable[[Told], None]) -> None:
        """The successor serves."""
        self._send = send
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            send(each)
            if isinstance(each, Cancelled):
                self._forget(each.number)

    def undo(self) -> Sequence[Order]:
        """What a successor would have been told, if there were one."""
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
                request.start(now)
            case Delivered(number=number, delta=delta) if number in self._requests:
                request = self._requests[number]
                self._note_first(request)
                now = self._loop.time()
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
        """Tell the readers of those without news that time passes."""
        for each in self._requests.values():
            each.remind(now, after_s)

    def refuse_all(self, refusal: Refusal) -> None:
        """Nothing more will come."""
        for number in list(self._requests):
            self._requests[number].refuse(refusal)
            self._forget(number)

    def _note_first(self, request: Request) -> None:
        if request.timing.first_token_s is None:
            request.timing.first_token_s = self._loop.time() - request.arrived_at

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
