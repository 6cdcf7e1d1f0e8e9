"""Answers that are not over: the job of each answer, the making of an answer, and the queue of
waiting answers.
"""

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
from gateway.models.fleet import Fleet
from gateway.models.model_supervisor import ModelSupervisor
from gateway.requests.choices import Choices, Format, answers_to, pieces, usage_of
from gateway.requests.request import Request, Terms
from gateway.requests.share import Share
from gateway.system.refusal import Refusal
from protocol.answers import Usage

# The events of an attempt have higher numbers than all events of earlier attempts. So a follower
# that returns with a number from before a crash gets the whole stream of the new attempt.
NUMBERS_PER_ATTEMPT: Final = 1_000_000
_END: Final = b"\n\n"
# The shortest deadline of a request. When it has passed, the model's queue refuses the request.
_LEAST_S: Final = 0.001


class AnswerFamily(Protocol):
    """How one API writes its answers. `body` is the body of an answer that isn't over. Events have
    numbers if the API has numbers.
    """

    def form(self, form: bytes, request: Request, first_number: int) -> Format:
        """The writer of an answer that begins now. The first event gets `first_number`."""

    def failure(self, body: bytes, refusal: Refusal) -> AnswerOutcome:
        """The outcome of an answer that fails."""

    def cancellation(self, body: bytes) -> AnswerOutcome:
        """The outcome of an answer that its owner has cancelled."""

    def first_events(self, body: bytes, number: int) -> bytes:
        """The events of an answer that waits for its turn. The first event gets `number`."""

    def last_event(self, outcome: AnswerOutcome, number: int) -> bytes:
        """The last event, with this number, of a stream whose answer ends without its rest."""


class AnswerJob:
    """The job of one answer, until its end. Followers are clients that wait for the answer or for
    its events. With `streams` the events are recorded, also for followers that return. Everything
    runs on the event loop.
    """

    def __init__(
        self, entry: MailboxEntry, *, streams: bool, renewals: int, seat: Seat | None = None
    ) -> None:
        """`renewals` is the archive's number when the entry was written. The job releases `seat`,
        the answer's places under the limits of its key.
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
        self.ended = asyncio.Event()
        self._supervisor: ModelSupervisor | None = None
        self._seat = seat
        self._share: Share | None = None
        self._followers: set[asyncio.Event] = set()

    @property
    def over(self) -> bool:
        """Whether the job has ended. Its answer may still be made after the next start."""
        return self.ended.is_set()

    @property
    def next_number(self) -> int:
        return self.first_number + len(self.events)

    @property
    def usage(self) -> Usage | None:
        """The tokens that were computed for the answer, even if it failed; None: no tokens."""
        spent = [request.spent for request in self.requests if request.spent is not None]
        return usage_of(spent, len(spent)) if spent else None

    def hold(self, share: Share) -> None:
        """Hold the share, which counts the memory of the work, as the client may disconnect."""
        share.hold()
        self._share = share

    def release_share(self) -> None:
        """Release the share, as the work isn't in memory any more."""
        share, self._share = self._share, None
        if share is not None:
            share.release()

    def started(self, supervisor: ModelSupervisor, requests: list[Request]) -> None:
        self._supervisor = supervisor
        self.requests = requests
        if self._seat is not None:
            self._seat.count(requests)
        if self.cancelled:
            self.cancel()

    def drop_tokens(self) -> None:
        """Drop the answer's tokens from the seat, as the account of the key has them."""
        if self._seat is not None:
            self._seat.answers = ()

    def cancel(self) -> None:
        """Stop making the answer."""
        self.cancelled = True
        self.release()
        for request in self.requests:
            request.abandon()

    def release(self) -> None:
        """Cancel the requests, as no code reads their answers any more."""
        for request in self.requests:
            if not request.over and self._supervisor is not None:
                self._supervisor.traffic.cancel(request)

    def record(self, chunk: bytes) -> None:
        """Record some whole events."""
        if chunk and self.streams:
            self.events += split(chunk)
            self._notify()

    def end(self, outcome: AnswerOutcome | None, refusal: Refusal | None) -> None:
        """End the job. Without an outcome followers get the refusal, and the answer was dropped or
        is made later.
        """
        self.outcome, self.refusal = outcome, refusal
        self.release_share()
        if self._seat is not None:
            self._seat.release()
            self._seat = None
        self.ended.set()
        self._notify()

    @contextlib.contextmanager
    def follow(self) -> Iterator[asyncio.Event]:
        """An `asyncio.Event` that is set whenever the job has something new, or ends."""
        follower = asyncio.Event()
        self._followers.add(follower)
        try:
            yield follower
        finally:
            self._followers.discard(follower)
            if not self._followers and not self.entry.streams:
                # A client that fetches the answer later gets its body.
                self.streams = False
                self.events.clear()
            elif not self._followers and self._share is None and not self.over:
                # The answer still waits, and its events can be made again from its body in the
                # file.
                self.events.clear()

    def _notify(self) -> None:
        for follower in self._followers:
            follower.set()


def first_number(attempts_before: int) -> int:
    """The number of the first event of the next attempt."""
    return attempts_before * NUMBERS_PER_ATTEMPT


def split(events: bytes) -> list[bytes]:
    """The single events of a stream."""
    return [event + _END for event in events.split(_END)[:-1]]


class Made(Struct, frozen=True):
    """A whole answer; `closing` are the last events of its stream."""

    outcome: AnswerOutcome
    closing: bytes


async def make(
    job: AnswerJob, work: Work, fleet: Fleet, family: AnswerFamily, share: int, now: float
) -> Made:
    """Make the answer of a job. `share` is that of its owner, `now` is a Unix time.

    Raises:
        Refusal: the answer failed; `job.requests` is empty if the model's queue refused the
            requests.
        ClientGoneError: the job was cancelled.
    """
    # The right to use the model was checked when the answer was accepted.
    supervisor = fleet.roster.find(job.entry.model, ANYBODY)
    terms = Terms(
        id=work.request_id,
        key=job.entry.key,
        share=share,
        deadline_s=max(_LEAST_S, job.entry.deadline_at - now),
        priority=work.priority,
        keep_alive_s=work.keep_alive_s,
        params=work.params,
    )
    requests = answers_to(work.task, work.answers, terms, fleet.now())
    fleet.submit(supervisor, *requests)
    job.started(supervisor, requests)
    form = family.form(work.form, requests[0], job.next_number)
    choices = Choices(requests, form, len(requests))
    try:
        async with aclosing(pieces(requests)) as arriving:
            async for index, piece in arriving:
                if piece.idle:
                    continue
                choices.store(index, piece)
                if job.streams:
                    job.record(choices.write(index, piece))
    finally:
        job.release()
    closing = choices.closing() if job.streams else b""
    incomplete = work.cut_is_incomplete and choices.cut
    outcome = AnswerOutcome("incomplete" if incomplete else "completed", 200, choices.whole())
    return Made(outcome, closing)


# With this priority an answer comes after all requests whose clients wait.
LOWEST_PRIORITY: Final = -1000


class QueuePlace(Struct, frozen=True):
    """The place of an answer in the queue."""

    name: Name
    model: str
    priority: int
    deadline_at: float


class BackgroundQueue:
    """The answers that wait in the background, by priority and then by age, and those that run.
    Each model makes a limited number of answers at a time.
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
        return Counter(turn.name[0] for turn in self._waiting)

    def next(
        self, concurrency: int, without: Collection[str] = (), spent: Collection[str] = ()
    ) -> QueuePlace | None:
        """Start the next answer that may run, if there is one. Each model may run `concurrency`
        answers. Answers of models in `without`, and of owners in `spent`, may not run.
        """
        busy = Counter(turn.model for turn in self._running.values())
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
        return any(turn.name == name for turn in self._waiting)

    def runs(self, name: Name) -> bool:
        return name in self._running

    def start_early(self, name: Name) -> bool:
        """Let an answer run before its turn, and beyond `concurrency`. Returns False if the answer
        doesn't wait.
        """
        for place, turn in enumerate(self._waiting):
            if turn.name == name:
                del self._waiting[place]
                self._running[name] = turn
                return True
        return False

    def put_back(self, name: Name) -> bool:
        """Put a running answer back, before all waiting answers of its priority. Returns False if
        the answer isn't running.
        """
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
        self._waiting = [turn for turn in self._waiting if turn.name != name]

    def start_overdue(self, now: float) -> list[QueuePlace]:
        """Start the waiting answers whose deadline has passed, so that their jobs can fail and tell
        the clients.
        """
        overdue = [turn for turn in self._waiting if turn.deadline_at <= now]
        for turn in overdue:
            self.start_early(turn.name)
        return overdue
