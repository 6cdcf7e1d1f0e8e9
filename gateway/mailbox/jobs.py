"""Answers that are not over: a job for each, how one is made, and the queue of those that wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import aclosing
from typing import Final, Protocol

from msgspec import Struct

from gateway.access.caller import ANYBODY
from gateway.access.limits import Seat
from gateway.mailbox.entry import AnswerOutcome, MailboxEntry, Name, Work
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet
from gateway.requests.choices import Choices, Format, answers_to, pieces, usage_of
from gateway.requests.request import Request, Terms
from gateway.requests.share import Share
from gateway.system.refusal import Refusal
from protocol.answers import Usage

# Each attempt numbers its events beyond those of the one before: a follower that returns with a
# number of an attempt that a crash has ended gets the whole new stream.
NUMBERS_PER_ATTEMPT: Final = 1_000_000
_END: Final = b"\n\n"
# The shortest deadline of a request. The model's queue refuses it when that has passed.
_LEAST_S: Final = 0.001


class AnswerFamily(Protocol):
    """How one API writes its answers. `body` is that of an answer which isn't over. Events have
    numbers if the API has them.
    """

    def form(self, form: bytes, request: Request, first_number: int) -> Format:
        """The writer of an answer that begins now; its first event has this number."""

    def failure(self, body: bytes, refusal: Refusal) -> AnswerOutcome:
        """The outcome of an answer that fails."""

    def cancellation(self, body: bytes) -> AnswerOutcome:
        """The outcome of an answer that its owner has cancelled."""

    def first_events(self, body: bytes, number: int) -> bytes:
        """The events of an answer that waits for its turn."""

    def last_event(self, outcome: AnswerOutcome, number: int) -> bytes:
        """The last event of a stream that ends without the rest of its answer."""


class AnswerJob:
    """An answer until its end. With `streams` its events are recorded, also for followers that
    return. Everything runs on the event loop.
    """

    def __init__(
        self, entry: MailboxEntry, *, streams: bool, renewals: int, seat: Seat | None = None
    ) -> None:
        """`renewals` is that of the archive when the entry was written. The job releases the `seat`
        of its key.
        """
        self.entry = entry
        self.streams = streams
        self.renewals = renewals
        self.events: list[bytes] = []
        self.first_number = first_number(entry.attempts)
        self.requests: list[Request] = []
        self.outcome: AnswerOutcome | None = None
        self.refusal: Refusal | None = None
        self.cancelled = False
        self.deleted = False
        self.settled = asyncio.Event()
        self._compartment: Compartment | None = None
        self._seat = seat
        self._share: Share | None = None
        self._followers: set[asyncio.Event] = set()

    @property
    def over(self) -> bool:
        """Whether it has ended, at least until the gateway's next start."""
        return self.settled.is_set()

    @property
    def next_number(self) -> int:
        return self.first_number + len(self.events)

    @property
    def usage(self) -> Usage | None:
        """The tokens that were computed for it, also if it failed; None if none were."""
        spent = [each.spent for each in self.requests if each.spent is not None]
        return usage_of(spent, len(spent)) if spent else None

    def hold(self, share: Share) -> None:
        """Count the memory of its work in this share, as its client may disconnect."""
        share.hold()
        self._share = share

    def let_go(self) -> None:
        """Release the share, as its work isn't in memory any more."""
        share, self._share = self._share, None
        if share is not None:
            share.release()

    def begun(self, compartment: Compartment, requests: list[Request]) -> None:
        self._compartment = compartment
        self.requests = requests
        if self._seat is not None:
            self._seat.count(requests)
        if self.cancelled:
            self.cancel()

    def counted(self) -> None:
        """Its tokens are in the account of its key by now."""
        if self._seat is not None:
            self._seat.answers = ()

    def cancel(self) -> None:
        """Stop the making of it."""
        self.cancelled = True
        self.release()
        for each in self.requests:
            each.abandon()

    def release(self) -> None:
        """Cancel its requests, as no code reads them any more."""
        for each in self.requests:
            if not each.over and self._compartment is not None:
                self._compartment.traffic.cancel(each)

    def record(self, chunk: bytes) -> None:
        """Record some whole events."""
        if chunk and self.streams:
            self.events += split(chunk)
            self._notify()

    def end(self, outcome: AnswerOutcome | None, refusal: Refusal | None) -> None:
        """End the job. Without an outcome the answer is made after the gateway's next start."""
        self.outcome, self.refusal = outcome, refusal
        self.let_go()
        if self._seat is not None:
            self._seat.release()
            self._seat = None
        self.settled.set()
        self._notify()

    @contextlib.contextmanager
    def follow(self) -> Iterator[asyncio.Event]:
        """An event that is set whenever there is more."""
        follower = asyncio.Event()
        self._followers.add(follower)
        try:
            yield follower
        finally:
            self._followers.discard(follower)
            if not self._followers and not self.entry.streams:
                # A client that fetches it later gets its body.
                self.streams = False
                self.events.clear()
            elif not self._followers and self._share is None and not self.over:
                # As long as it waits its events can be made again from its body in the file.
                self.events.clear()

    def _notify(self) -> None:
        for each in self._followers:
            each.set()


def first_number(attempts_before: int) -> int:
    """The number of the first event of the next attempt."""
    return attempts_before * NUMBERS_PER_ATTEMPT


def split(events: bytes) -> list[bytes]:
    """The single events of a stream."""
    return [each + _END for each in events.split(_END)[:-1]]


class Made(Struct, frozen=True):
    """A whole answer; `closing` are the last events of its stream."""

    outcome: AnswerOutcome
    closing: bytes


async def make(job: AnswerJob, work: Work, fleet: Fleet, family: AnswerFamily, now: float) -> Made:
    """Make the answer of a job. `now` is a Unix time.

    Raises:
        Refusal: it failed; `job.requests` are empty if the model's queue refused it.
        ClientGoneError: it was cancelled.
    """
    # The right to use the model was checked when the answer was accepted.
    compartment = fleet.roster.find(job.entry.model, ANYBODY)
    terms = Terms(
        id=work.request_id,
        key=job.entry.key,
        deadline_s=max(_LEAST_S, job.entry.deadline_at - now),
        priority=work.priority,
        keep_alive_s=work.keep_alive_s,
        params=work.params,
    )
    requests = answers_to(work.task, work.answers, terms, fleet.now())
    fleet.submit(compartment, *requests)
    job.begun(compartment, requests)
    form = family.form(work.form, requests[0], job.next_number)
    choices = Choices(requests, form, len(requests))
    try:
        async with aclosing(pieces(requests)) as arriving:
            async for index, piece in arriving:
                if piece.idle:
                    continue
                choices.keep(index, piece)
                if job.streams:
                    job.record(choices.write(index, piece))
    finally:
        job.release()
    closing = choices.closing() if job.streams else b""
    incomplete = work.cut_is_incomplete and choices.cut
    outcome = AnswerOutcome("incomplete" if incomplete else "completed", 200, choices.whole())
    return Made(outcome, closing)


# Behind all requests whose clients wait.
LOWEST_PRIORITY: Final = -1000


class QueuePlace(Struct, frozen=True):
    """The place of an answer in the queue."""

    name: Name
    model: str
    priority: int
    deadline_at: float


class BackgroundQueue:
    """Answers that wait in the background, by priority and then by age. Each model makes a limited
    number at a time.
    """

    def __init__(self) -> None:
        self._waiting: list[QueuePlace] = []
        self._running: dict[Name, QueuePlace] = {}

    def add(self, turn: QueuePlace) -> None:
        """Add a place. The caller has checked that the queue isn't full."""
        place = len(self._waiting)
        while place and self._waiting[place - 1].priority < turn.priority:
            place -= 1
        self._waiting.insert(place, turn)

    @property
    def owners(self) -> Counter[str]:
        """The number of waiting answers of each owner."""
        return Counter(owner for owner, _ in (each.name for each in self._waiting))

    def next(
        self, concurrency: int, without: Collection[str] = (), spent: Collection[str] = ()
    ) -> QueuePlace | None:
        """Take the next answer that may run, if there is one; none of the models in `without`, and
        none of the owners in `spent`.
        """
        busy = Counter(each.model for each in self._running.values())
        for place, turn in enumerate(self._waiting):
            owner, _ = turn.name
            if owner in spent or turn.model in without:
                continue
            if busy[turn.model] < concurrency:
                del self._waiting[place]
                self._running[turn.name] = turn
                return turn
        return None

    def waits(self, name: Name) -> bool:
        return any(each.name == name for each in self._waiting)

    def runs(self, name: Name) -> bool:
        return name in self._running

    def take(self, name: Name) -> bool:
        """Let an answer run before its turn and beyond the limit; False: it doesn't wait."""
        for place, turn in enumerate(self._waiting):
            if turn.name == name:
                del self._waiting[place]
                self._running[name] = turn
                return True
        return False

    def put_back(self, name: Name) -> bool:
        """Make a running answer the first that waits of its priority; False: it isn't running."""
        if (turn := self._running.pop(name, None)) is None:
            return False
        place = 0
        while place < len(self._waiting) and self._waiting[place].priority > turn.priority:
            place += 1
        self._waiting.insert(place, turn)
        return True

    def remove(self, name: Name) -> None:
        """Forget an answer, whether it waits or runs."""
        self._running.pop(name, None)
        self._waiting = [each for each in self._waiting if each.name != name]

    def take_overdue(self, now: float) -> list[QueuePlace]:
        """The answers whose deadline has passed. They run from now on, so that their clients
        are told.
        """
        overdue = [each for each in self._waiting if each.deadline_at <= now]
        for turn in overdue:
            self.take(turn.name)
        return overdue
