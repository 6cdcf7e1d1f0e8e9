"""The requests of one model: those that wait for it, and those that its worker runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from gateway.dispatch.refusal import Refusal
from gateway.dispatch.request import Request

_RETRY_AFTER_S: Final = 5


class RequestQueue:
    """First come, first served, within a depth and a number that may run at once."""

    def __init__(self, model_id: str, depth: int, max_running: int) -> None:
        self._model_id = model_id
        self._depth = depth
        self._max_running = max_running
        self._waiting: deque[Request] = deque()
        self._running: dict[str, Request] = {}

    def __iter__(self) -> Iterator[Request]:
        yield from self._waiting
        yield from self._running.values()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def add(self, request: Request) -> None:
        """Take a request in.

        Raises:
            Refusal: as many wait already as may.
        """
        if len(self._waiting) >= self._depth:
            raise Refusal(
                "queue_full",
                f"{self._depth} requests wait for {self._model_id!r} already, as many as its queue "
                "holds: try again later.",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._waiting.append(request)

    def start_next(self) -> Request | None:
        """Move the next request to those that run; None if none waits or enough run."""
        if not self._waiting or len(self._running) >= self._max_running:
            return None
        request = self._waiting.popleft()
        self._running[request.id] = request
        return request

    def find_running(self, request_id: str) -> Request | None:
        return self._running.get(request_id)

    def remove(self, request: Request) -> bool:
        """Forget a request, wherever it is; True if it ran."""
        if self._running.pop(request.id, None) is not None:
            return True
        if request in self._waiting:
            self._waiting.remove(request)
        return False

    def refuse_waiting(self, refusal: Refusal) -> None:
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            request.refuse(refusal)

    def end_running(self, refusal: Refusal) -> None:
        running, self._running = self._running, {}
        for request in running.values():
            request.refuse(refusal)

    def refuse_overdue(self, now: float) -> int:
        """Refuse what has waited longer than its deadline; returns how many."""
        overdue = [each for each in self._waiting if each.deadline_at <= now]
        for request in overdue:
            self._waiting.remove(request)
            request.refuse(
                Refusal(
                    "deadline_exceeded",
                    f"The request waited for {self._model_id!r} until its deadline passed; "
                    "X-Deadline-S sets another.",
                    retry_after_s=_RETRY_AFTER_S,
                )
            )
        return len(overdue)
