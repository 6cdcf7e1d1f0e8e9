"""The requests of one model: waiting requests, running ones, and the quarantine. No I/O."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final, NamedTuple

import msgspec

from gateway.requests.fair_shares import FairShares
from gateway.requests.progress import Passage, Task, likely_tokens
from gateway.requests.request import Request
from protocol.requests import Generate

# A new request waits for this time before a running answer makes way for it. Most places become
# free sooner.
_PATIENCE_S: Final = 0.5
_MOST_LISTED: Final = 64


class QueueFullError(Exception):
    """The queue is full."""


class Change(NamedTuple):
    """The request `leaving` gives its place in the worker to the request `coming`."""

    leaving: Request
    coming: Request


class SharerCount(NamedTuple):
    """A sharer of a model: the seconds that it took, and its requests."""

    name: str
    share: int
    cost_s: float
    running: int
    waiting: int


class RequestQueue:
    """The requests of one model that wait or run. At most `max_running` requests run at once.

    Suspects start first, then parked requests, then new requests by priority. Among new requests of
    one priority, the oldest request of the sharer with the fewest seconds for its share is next.

    A sharer may have all places, and the whole queue, while no other sharer wants any. If another
    sharer wants a place in the queue, the sharer with the most requests there gives up its newest.
    If another sharer wants a place in the worker, a request without a token gives up its place. The
    place of a running answer goes only to a sharer that has no place. The answer goes on later.

    A suspect is a request that ran when a worker died. It runs alone: if the next worker dies, too,
    the suspect is to blame, and no other request is hurt. A suspect is cleared when it has had
    enough tokens since that death.
    """

    def __init__(self, depth: int, max_running: int, priority: int) -> None:
        """At most `depth` new requests may wait: the setting `queue.depth`. Requests without a
        priority of their own have `priority`.
        """
        self.depth = depth
        self.max_running = max_running
        self.priority = priority
        self._suspects: deque[Request] = deque()
        self._parked: deque[Request] = deque()
        self._waiting: deque[Request] = deque()
        self._running: dict[str, Request] = {}
        self._alone: Request | None = None
        self.shares = FairShares()
        # The seconds that running requests without a token are likely to take.
        self._expected_s: dict[Request, float] = {}

    def __iter__(self) -> Iterator[Request]:
        for requests in (self._suspects, self._parked, self._waiting):
            yield from requests
        yield from self._running.values()

    def places(self) -> Iterator[tuple[int | None, Request]]:
        """Each request, with its place among the waiting requests, from 1 on; None: it runs."""
        for request in self._running.values():
            yield None, request
        yield from enumerate(self._in_turn(), 1)

    @property
    def in_order(self) -> tuple[list[Request], list[Request]]:
        """The running requests, and the waiting requests in the order in which they start."""
        return list(self._running.values()), self._in_turn()

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

    def sharers(self) -> list[SharerCount]:
        """The sharers that are remembered, in the order of their turns."""
        self._meet()
        running = Counter(request.terms.sharer for request in self._running.values())
        present = Counter(request.terms.sharer for request in self)
        counts = []
        for name in self.shares.in_turn[:_MOST_LISTED]:
            sharer = self.shares.sharer(name)
            waiting = present[name] - running[name]
            counts.append(SharerCount(name, sharer.share, sharer.cost_s, running[name], waiting))
        return counts

    @property
    def oldest_waiting_at(self) -> float | None:
        """When the oldest waiting request arrived; another request may start before it."""
        queues = (self._suspects, self._parked, self._waiting)
        return min((request.arrived_at for queue in queues for request in queue), default=None)

    @property
    def oldest_running_at(self) -> float | None:
        return min((request.arrived_at for request in self._running.values()), default=None)

    @property
    def longest_running(self) -> Request | None:
        """The running request with the most tokens, of its prompt and its answer."""
        return max(
            self._running.values(),
            key=lambda request: request.progress.prompt_tokens + len(request.progress.delivered),
            default=None,
        )

    def add(self, request: Request) -> Request | None:
        """Take in a new request. Returns the waiting request that had to leave for it, which the
        caller must refuse; None: none had to.

        Raises:
            QueueFullError: `depth` new requests wait already, and none of them must leave.
        """
        leaving = None
        if len(self._waiting) >= self.depth:
            leaving = self._surplus(request)
            self._waiting.remove(leaving)
        place = len(self._waiting)
        priority = self.priority_of(request)
        while place and self.priority_of(self._waiting[place - 1]) < priority:
            place -= 1
        self._waiting.insert(place, request)
        self._meet()
        return leaving

    def _surplus(self, request: Request) -> Request:
        """The waiting request that must leave a full queue for a new one: the newest of the sharer
        with the most requests for its share, if these are more than the new one's sharer would
        have.

        Raises:
            QueueFullError: there is none.
        """
        waiting = Counter(request.terms.sharer for request in self._waiting)
        sharer, priority = request.terms.sharer, self.priority_of(request)

        def load(queued: Request) -> float:
            return waiting[queued.terms.sharer] / queued.terms.share

        others = (
            request
            for request in reversed(self._waiting)
            if request.terms.sharer != sharer
            and not request.progress.begun
            and self.priority_of(request) <= priority
        )
        leaving = max(others, key=load, default=None)
        if leaving is None or load(leaving) <= (waiting[sharer] + 1) / request.terms.share:
            raise QueueFullError
        return leaving

    @property
    def blamed(self) -> int:
        """The number of running requests that are to blame if the worker dies now."""
        return sum(request.progress.suspect for request in self._running.values())

    @property
    def highest_priority(self) -> int | None:
        """The highest priority of all requests that wait or run; None: there are none."""
        return max(map(self.priority_of, self), default=None)

    def next(self) -> Request | None:
        """Remove and return the request that may start now, if there is one. The caller must `run`
        or refuse it.
        """
        self._meet()
        if self._alone is not None or len(self._running) >= self.max_running:
            return None
        if self._suspects:
            return self._suspects.popleft() if not self._running else None
        if self._parked:
            return self._parked.popleft()
        request = self._first()
        if request is not None:
            self._waiting.remove(request)
        return request

    def _first(self) -> Request | None:
        """The new request that starts next."""
        oldest: dict[str, Request] = {}
        for request in self._waiting:
            if self.priority_of(request) < self.priority_of(self._waiting[0]):
                break
            oldest.setdefault(request.terms.sharer, request)
        return min(
            oldest.values(),
            key=lambda request: self.shares.turn_s(request.terms.sharer),
            default=None,
        )

    def _in_turn(self) -> list[Request]:
        """The waiting requests in the order in which they will probably start."""
        self._meet()
        in_turn = [*self._suspects, *self._parked]
        turns_s = {
            request.terms.sharer: self.shares.turn_s(request.terms.sharer) for request in self
        }
        for _, group in groupby(self._waiting, self.priority_of):
            queues: dict[str, deque[Request]] = {}
            for waiting in group:
                queues.setdefault(waiting.terms.sharer, deque()).append(waiting)
            while queues:
                name = min(queues, key=lambda name: turns_s[name])
                request = queues[name].popleft()
                turns_s[name] += self._likely_s(request) / request.terms.share
                in_turn.append(request)
                if not queues[name]:
                    del queues[name]
        return in_turn

    def make_way(self, now: float) -> Change | None:
        """Have a running request of a sharer that has more than its part of the places wait again,
        for the new request that starts next. The caller must `run` or refuse that request. None:
        no place changes hands.
        """
        if self._alone is not None or self._suspects or len(self._running) < self.max_running:
            return None
        coming = self._first()
        if coming is None:
            return None
        leaving = self._leaving(coming, now)
        if leaving is None:
            return None
        self._waiting.remove(coming)
        del self._running[leaving.progress.wire_id]
        self.await_measurement(leaving)
        if leaving.progress.delivered:
            self._parked.append(leaving)
        else:
            # It keeps its age, so no other request of its sharer starts before it.
            place = sum(self._order(request) < self._order(leaving) for request in self._waiting)
            self._waiting.insert(place, leaving)
        return Change(leaving, coming)

    def _leaving(self, coming: Request, now: float) -> Request | None:
        places = Counter(request.terms.sharer for request in self._running.values())
        sharer, priority = coming.terms.sharer, self.priority_of(coming)

        def part(name: str) -> float:
            return max(1.0, self.max_running * self.shares.part_of(name))

        if places[sharer] + 1 > part(sharer):
            return None
        puts_aside = not places[sharer] and now - coming.arrived_at >= _PATIENCE_S
        choices = [
            request
            for request in reversed(self._running.values())
            if places[request.terms.sharer] > part(request.terms.sharer)
            and self.priority_of(request) <= priority
            and not isinstance(request.task, Passage)
            and (puts_aside or not request.progress.delivered)
        ]
        # The newest: the worker is the least far with it.
        return min(
            choices,
            key=lambda request: (bool(request.progress.delivered), -places[request.terms.sharer]),
            default=None,
        )

    def _order(self, request: Request) -> tuple[int, float]:
        return -self.priority_of(request), request.arrived_at

    def _meet(self) -> None:
        """Tell the shares who has requests."""
        self.shares.meet({request.terms.sharer: request.terms.share for request in self})

    def _likely_s(self, request: Request) -> float:
        tokens = request.progress.prompt_tokens or likely_tokens(request.task)
        return self.shares.likely_s(tokens + len(request.progress.delivered))

    def run(self, request: Request) -> None:
        """Add a request to the running ones, by its present wire id."""
        self._running[request.progress.wire_id] = request
        if request.progress.suspect:
            self._alone = request
        self._meet()
        self._expected_s[request] = likely_s = self._likely_s(request)
        self.shares.expect(request.terms.sharer, likely_s)

    def await_measurement(self, request: Request) -> None:
        """Note that the worker's next measurement has what was expected of a request."""
        if (likely_s := self._expected_s.pop(request, None)) is not None:
            self.shares.await_measurement(request.terms.sharer, likely_s)

    def find_running(self, wire_id: str) -> Request | None:
        return self._running.get(wire_id)

    def is_cleared(self, request: Request) -> bool:
        """Whether the request is a suspect that ran alone, and has shown that it kills nobody."""
        return request is self._alone and not request.progress.suspect

    def release_suspect(self, request: Request) -> bool:
        """If the request is cleared, let other requests run beside it. Returns True if the request
        itself must pause, so that other suspects can run alone.
        """
        if not self.is_cleared(request):
            return False
        self._alone = None
        if not self._suspects:
            return False
        del self._running[request.progress.wire_id]
        self.await_measurement(request)
        self._parked.append(request)
        return True

    def remove(self, request: Request) -> bool:
        """Remove a request, whether it waits or runs. Returns whether it ran."""
        if request is self._alone:
            self._alone = None
        self.await_measurement(request)
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
        for request in running:
            self.await_measurement(request)
        return running

    def park(self, requests: list[Request]) -> None:
        """Put requests that ran at the front of the queue, in their order."""
        self._suspects.extend(request for request in requests if request.progress.suspect)
        self._parked.extendleft(
            request for request in reversed(requests) if not request.progress.suspect
        )

    def take_waiting(self) -> list[Request]:
        """Remove and return the requests that wait."""
        waiting = [*self._suspects, *self._parked, *self._waiting]
        for queue in (self._suspects, self._parked, self._waiting):
            queue.clear()
        return waiting

    def priority_of(self, request: Request) -> int:
        """The request's own priority; without one, the queue's."""
        priority = request.terms.priority
        return self.priority if priority is None else priority

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
        return [
            request
            for request in running
            if request.deadline_at <= now and not request.progress.delivered
        ]

    def take_overdue(self, now: float) -> list[Request]:
        """Remove and return the waiting requests whose deadline has passed."""
        overdue = []
        for queue in (self._suspects, self._parked, self._waiting):
            late = [request for request in queue if request.deadline_at <= now]
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
        return max((until - now for until, item in self._until if item == content), default=None)

    def clear(self) -> None:
        self._until.clear()


def _content(task: Task) -> Task:
    """The task, without the parts that differ when a client sends the same body again."""
    if not isinstance(task, Generate):
        return msgspec.structs.replace(task, request_id="")
    sampling = msgspec.structs.replace(task.sampling, seed=0)
    return msgspec.structs.replace(task, request_id="", sampling=sampling, cache_salt="")
