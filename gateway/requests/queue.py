"""The requests of one model: those that wait, that run, and that are kept out. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from gateway.requests.request import Request
from protocol.requests import Embed, Task


class QueueFullError(Exception):
    """The queue is full."""


class RequestQueue:
    """Parked requests first, then by priority, then first come, first served, up to a number that
    may run at once.

    A suspect, which ran when a worker died, runs alone: if the next worker dies too, the suspect is
    to blame, and no other request is hurt. It is cleared once it is well past that point.
    """

    def __init__(self, depth: int, max_running: int, priority: int) -> None:
        """Requests without a priority of their own have `priority`."""
        self.depth = depth
        self.max_running = max_running
        self.priority = priority
        self._suspects: deque[Request] = deque()
        self._parked: deque[Request] = deque()
        self._waiting: deque[Request] = deque()
        self._running: dict[str, Request] = {}
        self._alone: Request | None = None

    def __iter__(self) -> Iterator[Request]:
        for each in (self._suspects, self._parked, self._waiting):
            yield from each
        yield from self._running.values()

    def places(self) -> Iterator[tuple[int | None, Request]]:
        """Each request with its place among those that start next, from 1 on; None: it runs."""
        for each in self._running.values():
            yield None, each
        yield from enumerate((*self._suspects, *self._parked, *self._waiting), 1)

    @property
    def in_order(self) -> tuple[list[Request], list[Request]]:
        """Those that run, and those that wait in the order in which they start."""
        waiting = [*self._suspects, *self._parked, *self._waiting]
        return list(self._running.values()), waiting

    @property
    def waiting(self) -> int:
        """Requests that wait, parked ones among them."""
        return len(self._suspects) + len(self._parked) + len(self._waiting)

    @property
    def parked(self) -> int:
        """Requests that wait and ran already."""
        return len(self._suspects) + len(self._parked)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def oldest_waiting_at(self) -> float | None:
        """When the oldest request that waits arrived; it need not be the first in order."""
        queues = (self._suspects, self._parked, self._waiting)
        return min((each.arrived_at for queue in queues for each in queue), default=None)

    @property
    def oldest_running_at(self) -> float | None:
        return min((each.arrived_at for each in self._running.values()), default=None)

    def add(self, request: Request) -> None:
        """Take a new request in.

        Raises:
            QueueFullError: the queue holds as many new ones as it may.
        """
        if len(self._waiting) >= self.depth:
            raise QueueFullError
        place = len(self._waiting)
        own = self.priority_of(request)
        while place and self.priority_of(self._waiting[place - 1]) < own:
            place -= 1
        self._waiting.insert(place, request)

    @property
    def guilty(self) -> int:
        """Requests that are to blame if the worker dies now."""
        return sum(each.progress.suspect for each in self._running.values())

    @property
    def highest_priority(self) -> int | None:
        """The highest of the requests that wait or run, if there are any."""
        return max(map(self.priority_of, self), default=None)

    def next(self) -> Request | None:
        """The request that may start now. It leaves the queue: `run` it, or refuse it."""
        if self._alone is not None or len(self._running) >= self.max_running:
            return None
        if self._suspects:
            return self._suspects.popleft() if not self._running else None
        for queue in (self._parked, self._waiting):
            if queue:
                return queue.popleft()
        return None

    def run(self, request: Request) -> None:
        """Count a request among those that run, under its present wire id."""
        self._running[request.progress.wire_id] = request
        if request.progress.suspect:
            self._alone = request

    def find_running(self, wire_id: str) -> Request | None:
        return self._running.get(wire_id)

    def acquit(self, request: Request) -> bool:
        """End the solitude of a cleared suspect; True if it must pause for other suspects."""
        if request is not self._alone or request.progress.suspect:
            return False
        self._alone = None
        if not self._suspects:
            return False
        del self._running[request.progress.wire_id]
        self._parked.append(request)
        return True

    def remove(self, request: Request) -> bool:
        """Forget a request, wherever it is; True if it ran."""
        if request is self._alone:
            self._alone = None
        if self._running.pop(request.progress.wire_id, None) is not None:
            return True
        for queue in (self._suspects, self._parked, self._waiting):
            if request in queue:
                queue.remove(request)
        return False

    def take_running(self) -> list[Request]:
        """Remove and return the requests that run."""
        running, self._running = list(self._running.values()), {}
        self._alone = None
        return running

    def park(self, requests: list[Request]) -> None:
        """Put requests that ran before all others, in their order."""
        self._suspects.extend(each for each in requests if each.progress.suspect)
        self._parked.extendleft(each for each in reversed(requests) if not each.progress.suspect)

    def take_waiting(self) -> list[Request]:
        """Remove and return the requests that wait."""
        waiting = [*self._suspects, *self._parked, *self._waiting]
        for queue in (self._suspects, self._parked, self._waiting):
            queue.clear()
        return waiting

    def priority_of(self, request: Request) -> int:
        """Its own, or that of requests without one."""
        own = request.terms.priority
        return self.priority if own is None else own

    def restore(self, running: Iterable[Request], waiting: Iterable[Request]) -> None:
        """Take over the requests of an earlier gateway, however many there are."""
        for request in running:
            self.run(request)
        for request in waiting:
            if request.progress.suspect:
                self._suspects.append(request)
            elif request.progress.begun:
                self._parked.append(request)
            else:
                self._waiting.append(request)

    def put_off(self, seconds: float) -> None:
        """Give requests that wait so much more time; deadlines of those that run stand still."""
        for queue in (self._suspects, self._parked, self._waiting):
            for request in queue:
                request.deadline_at += seconds

    def overdue_unbegun(self, now: float) -> list[Request]:
        """Requests that a worker has, without a token at their deadline."""
        running = self._running.values()
        return [e for e in running if e.deadline_at <= now and not e.progress.delivered]

    def take_overdue(self, now: float) -> list[Request]:
        """Remove and return the requests that have waited until their deadline."""
        overdue = []
        for queue in (self._suspects, self._parked, self._waiting):
            late = [each for each in queue if each.deadline_at <= now]
            for request in late:
                queue.remove(request)
            overdue += late
        return overdue


_QUARANTINE_S: Final = 300.0
_MOST: Final = 16


class Quarantine:
    """Recognizes a request that killed workers by its content; the caller brings the time."""

    def __init__(self) -> None:
        self._until: deque[tuple[float, Task]] = deque(maxlen=_MOST)

    def add(self, task: Task, now: float) -> None:
        self._until.append((now + _QUARANTINE_S, _content(task)))

    def remaining_s(self, task: Task, now: float) -> float | None:
        """How long the request is kept out yet; None if it may run."""
        while self._until and self._until[0][0] <= now:
            self._until.popleft()
        if not self._until:
            return None
        content = _content(task)
        return max((until - now for until, each in self._until if each == content), default=None)

    def clear(self) -> None:
        self._until.clear()


def _content(task: Task) -> Task:
    """The task without the parts that differ when a client sends the same body again."""
    if isinstance(task, Embed):
        return msgspec.structs.replace(task, request_id="")
    sampling = msgspec.structs.replace(task.sampling, seed=0)
    return msgspec.structs.replace(task, request_id="", sampling=sampling, cache_salt="")
