"""The requests of one model: waiting requests, running ones, and the quarantine. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from gateway.requests.progress import Task
from gateway.requests.request import Request
from protocol.requests import Generate


class QueueFullError(Exception):
    """The queue is full."""


class RequestQueue:
    """The requests of one model that wait or run. Suspects start first, then parked requests, then
    new requests by priority and age. At most `max_running` requests run at once.

    A suspect, which ran when a worker died, runs alone: if the next worker dies, too, the suspect
    is to blame, and no other request is hurt. A suspect is cleared when it has had enough tokens
    since that death.
    """

    def __init__(self, depth: int, max_running: int, priority: int) -> None:
        """At most `depth` new requests may wait. Requests without a priority of their own have
        `priority`.
        """
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
        """Each request, with its place among the waiting requests, from 1 on; None: it runs."""
        for each in self._running.values():
            yield None, each
        yield from enumerate((*self._suspects, *self._parked, *self._waiting), 1)

    @property
    def in_order(self) -> tuple[list[Request], list[Request]]:
        """The running requests, and the waiting requests in the order in which they start."""
        waiting = [*self._suspects, *self._parked, *self._waiting]
        return list(self._running.values()), waiting

    @property
    def waiting(self) -> int:
        """The number of waiting requests, parked ones among them."""
        return len(self._suspects) + len(self._parked) + len(self._waiting)

    @property
    def parked(self) -> int:
        """The number of waiting requests that ran before."""
        return len(self._suspects) + len(self._parked)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def oldest_waiting_at(self) -> float | None:
        """When the oldest waiting request arrived; another request may start before it."""
        queues = (self._suspects, self._parked, self._waiting)
        return min((each.arrived_at for queue in queues for each in queue), default=None)

    @property
    def oldest_running_at(self) -> float | None:
        return min((each.arrived_at for each in self._running.values()), default=None)

    def add(self, request: Request) -> None:
        """Take in a new request.

        Raises:
            QueueFullError: `depth` new requests wait already.
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
        """The number of running requests that are to blame if the worker dies now."""
        return sum(each.progress.suspect for each in self._running.values())

    @property
    def highest_priority(self) -> int | None:
        """The highest priority of all requests that wait or run; None: there are none."""
        return max(map(self.priority_of, self), default=None)

    def next(self) -> Request | None:
        """Remove and return the request that may start now, if there is one. The caller must `run`
        or refuse it.
        """
        if self._alone is not None or len(self._running) >= self.max_running:
            return None
        if self._suspects:
            return self._suspects.popleft() if not self._running else None
        for queue in (self._parked, self._waiting):
            if queue:
                return queue.popleft()
        return None

    def run(self, request: Request) -> None:
        """Add a request to the running ones, by its present wire id."""
        self._running[request.progress.wire_id] = request
        if request.progress.suspect:
            self._alone = request

    def find_running(self, wire_id: str) -> Request | None:
        return self._running.get(wire_id)

    def is_cleared(self, request: Request) -> bool:
        """Whether the request is a suspect that ran alone, and has shown that it kills nobody."""
        return request is self._alone and not request.progress.suspect

    def acquit(self, request: Request) -> bool:
        """If the request is cleared, let other requests run beside it. Returns True if the request
        itself must pause, so that other suspects can run alone.
        """
        if not self.is_cleared(request):
            return False
        self._alone = None
        if not self._suspects:
            return False
        del self._running[request.progress.wire_id]
        self._parked.append(request)
        return True

    def remove(self, request: Request) -> bool:
        """Remove a request, whether it waits or runs. Returns whether it ran."""
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
        """Put requests that ran at the front of the queue, in their order."""
        self._suspects.extend(each for each in requests if each.progress.suspect)
        self._parked.extendleft(each for each in reversed(requests) if not each.progress.suspect)

    def take_waiting(self) -> list[Request]:
        """Remove and return the requests that wait."""
        waiting = [*self._suspects, *self._parked, *self._waiting]
        for queue in (self._suspects, self._parked, self._waiting):
            queue.clear()
        return waiting

    def priority_of(self, request: Request) -> int:
        """The request's own priority; without one, the queue's."""
        own = request.terms.priority
        return self.priority if own is None else own

    def restore(self, running: Iterable[Request], waiting: Iterable[Request]) -> None:
        """Take over the requests of an earlier gateway, even if they are more than `depth`."""
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
        """Put off the deadlines of waiting requests. The deadlines of running requests stand still
        anyway.
        """
        for queue in (self._suspects, self._parked, self._waiting):
            for request in queue:
                request.deadline_at += seconds

    def overdue_unbegun(self, now: float) -> list[Request]:
        """Running requests whose deadline has passed before their first token."""
        running = self._running.values()
        return [e for e in running if e.deadline_at <= now and not e.progress.delivered]

    def take_overdue(self, now: float) -> list[Request]:
        """Remove and return the waiting requests whose deadline has passed."""
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
    """Keeps out requests that killed workers, and recognizes them by their content. The caller
    passes the time.
    """

    def __init__(self) -> None:
        self._until: deque[tuple[float, Task]] = deque(maxlen=_MOST)

    def add(self, task: Task, now: float) -> None:
        self._until.append((now + _QUARANTINE_S, _content(task)))

    def remaining_s(self, task: Task, now: float) -> float | None:
        """Seconds for which the request is still kept out; None: it may run."""
        while self._until and self._until[0][0] <= now:
            self._until.popleft()
        if not self._until:
            return None
        content = _content(task)
        return max((until - now for until, each in self._until if each == content), default=None)

    def clear(self) -> None:
        self._until.clear()


def _content(task: Task) -> Task:
    """The task, without the parts that differ when a client sends the same body again."""
    if not isinstance(task, Generate):
        return msgspec.structs.replace(task, request_id="")
    sampling = msgspec.structs.replace(task.sampling, seed=0)
    return msgspec.structs.replace(task, request_id="", sampling=sampling, cache_salt="")
