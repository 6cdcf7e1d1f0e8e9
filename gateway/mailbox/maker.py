"""Makes the answers of the mailbox, at once or when their turn has come.

An outcome is written to the file before followers get it. If an outcome can't be written, it stays
in memory, and no queued answer begins until it is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from gateway.access.limits import Seat
from gateway.mailbox.archive import ANSWER_S, Archive
from gateway.mailbox.entry import AnswerOutcome, Api, MailboxEntry, Name, Retention, Work
from gateway.mailbox.jobs import AnswerFamily, AnswerJob, BackgroundQueue, QueuePlace, make
from gateway.models.fleet import Fleet
from gateway.requests.request import ClientGoneError
from gateway.requests.share import ByteBudget, Share
from gateway.system.log_lines import about
from gateway.system.refusal import Refusal
from gateway.system.tasks import Tasks
from protocol.answers import Usage

logger = logging.getLogger(__name__)

_TICK_S: Final = 1.0
# An answer is given up once the gateway has died during so many attempts.
_MOST_DEATHS: Final = 16


class Owners(Protocol):
    """The owners of answers, and their keys."""

    def opens(self, owner: str) -> bool:
        """Whether the owner's key exists, and was not revoked."""

    def spend(self, owner: str, usage: Usage) -> None:
        """Add tokens to the usage of the owner's key, as no HTTP request does so for an answer of
        the mailbox.
        """

    def seat(self, owner: str) -> Seat | None:
        """Places for an answer under the limits of the owner's key; None: it has no limits."""

    def share(self, owner: str) -> int:
        """The share of the owner's key in the seconds of a model."""

    def exhausted(self, owner: str) -> bool:
        """Whether the owner's key has used all tokens that it may use in a minute."""


class Maker:
    """Makes answers. With `leaving` no queued answer begins, as another gateway makes the waiting
    answers. Everything runs on the event loop, except calls of the file.
    """

    def __init__(
        self,
        fleet: Fleet,
        families: Mapping[Api, AnswerFamily],
        owners: Owners,
        budget: ByteBudget,
        archive: Archive,
    ) -> None:
        """`budget` is the memory that all requests share."""
        self.leaving = False
        self._fleet = fleet
        self._families = families
        self._owners = owners
        self._budget = budget
        self._archive = archive
        self._tasks = Tasks("mailbox")
        self._queue = BackgroundQueue()
        self._jobs: dict[Name, AnswerJob] = {}
        # The outcomes that couldn't be written to the file yet.
        self._unwritten: dict[Name, tuple[AnswerJob, AnswerOutcome]] = {}
        # Models whose own queues were full in this turn.
        self._full: set[str] = set()
        self._wake = asyncio.Event()

    def start(self) -> None:
        self._tasks.repeat(self._turn, "turns", 0.0)

    @property
    def making(self) -> int:
        """The number of answers that aren't over, or aren't written to the file."""
        return len(self._jobs) + len(self._unwritten)

    @property
    def waiting(self) -> Counter[str]:
        """The number of each owner's answers that wait for their turn."""
        return self._queue.owners

    @property
    def in_progress(self) -> list[Name]:
        """The names of answers that are being made."""
        return [name for name in self._jobs if not self._queue.waits(name)]

    def job(self, name: Name) -> AnswerJob | None:
        """The job of an answer; None: the answer is over, or there is none."""
        return self._jobs.get(name)

    def unwritten(self, name: Name) -> tuple[AnswerJob, AnswerOutcome] | None:
        """The job and the outcome of an answer, if the outcome is not in the file yet."""
        return self._unwritten.get(name)

    def make_now(self, job: AnswerJob, share: Share, work: Work, body: bytes) -> None:
        """Make an answer now. The job holds the `share` until its end."""
        self._jobs[job.entry.name] = job
        job.hold(share)
        self._tasks.start(self._run(job, work, body), job.entry.id)

    def queue(self, job: AnswerJob) -> None:
        """Make an answer when its turn has come."""
        entry = job.entry
        self._jobs[entry.name] = job
        self._queue.add(QueuePlace(entry.name, entry.model, entry.priority, entry.deadline_at))
        self._wake.set()

    def queue_again(self, entry: MailboxEntry) -> None:
        """Queue an answer from the file, which was accepted before, unless it has a job."""
        if entry.name not in self._jobs:
            seat, renewals = self._owners.seat(entry.owner), self._archive.renewals
            self.queue(AnswerJob(entry, streams=entry.streams, renewals=renewals, seat=seat))

    def wake(self) -> None:
        """Begin the next turn now."""
        self._wake.set()

    def open(self, job: AnswerJob, body: bytes) -> None:
        """Record the first events of an answer, made from its body, unless its job has events."""
        if not job.events:
            job.record(self._families[job.entry.api].first_events(body, job.next_number))

    def cancel(self, job: AnswerJob) -> None:
        """Cancel a job, whether its answer waits or is being made. The job ends soon."""
        job.cancel()
        if self._queue.start_early(job.entry.name):
            self._start(job.entry.name)

    def forget_unwritten(self, name: Name) -> None:
        """Forget the outcome of an answer that was deleted."""
        self._unwritten.pop(name, None)

    def refuse_waiting(self, refusal: Refusal) -> None:
        """End the jobs of waiting answers. Their followers get the refusal."""
        for job in list(self._jobs.values()):
            if self._queue.waits(job.entry.name):
                self._forget(job)
                job.end(None, refusal)

    async def close(self) -> None:
        """End all jobs. To be called once all requests were refused. Unfinished answers are made
        after the gateway's next start.
        """
        self.refuse_waiting(_made_later())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                for job in list(self._jobs.values()):
                    await job.ended.wait()
        await self._write_unwritten()
        await self._tasks.cancel_all()

    # Turns

    async def _turn(self) -> None:
        """Wait for `wake` or for a tick, and begin the answers whose turn has come."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TICK_S):
                await self._wake.wait()
        self._wake.clear()
        self._full.clear()
        await self._write_unwritten()
        for late in self._queue.start_overdue(time.time()):
            self._start(late.name)
        for job in list(self._jobs.values()):
            if self._revoked(job):
                self.cancel(job)
        while (turn := self._next()) is not None:
            self._start(turn.name)

    def _revoked(self, job: AnswerJob) -> bool:
        """Whether the job's key was revoked, so that no client could fetch the answer."""
        owner = job.entry.owner
        return bool(owner) and not job.cancelled and not self._owners.opens(owner)

    def _next(self) -> QueuePlace | None:
        if self._unwritten or self._archive.trouble is not None or self.leaving:
            return None
        concurrency = self._fleet.settings.mailbox.concurrency
        spent = [owner for owner in self._queue.owners if self._owners.exhausted(owner)]
        return self._queue.next(concurrency, self._full, spent)

    def _start(self, name: Name) -> None:
        job = self._jobs[name]
        self._tasks.start(self._run_queued(job), job.entry.id)

    # One answer

    async def _run_queued(self, job: AnswerJob) -> None:
        entry = job.entry
        entry.attempts += 1
        share = Share(self._budget)
        job.hold(share)
        # From now on only the job holds the share.
        share.release()
        try:
            contents = await self._archive.write(
                self._archive.store.start_attempt, entry, share.reserve
            )
        except Refusal:
            job.release_share()
            self._queue.put_back(entry.name)
            return
        if contents is None:
            # The answer was deleted meanwhile, or lost with a damaged file.
            self._forget(job)
            job.end(None, Refusal("not_found", f"{entry.id} is not in the mailbox any more."))
            return
        work, body = contents
        entry.status = "in_progress"
        self.open(job, body)
        try:
            decoded = Work.decode(work)
        except msgspec.MsgspecError:
            refusal = Refusal(
                "internal_error",
                "Another version of Bulkhead has accepted this, and this one can't read it: send "
                "it again.",
            )
            await self._fail(job, body, refusal)
            return
        await self._run(job, decoded, body)

    async def _run(self, job: AnswerJob, work: Work, body: bytes) -> None:
        entry, family = job.entry, self._families[job.entry.api]
        try:
            self._check(job)
            share = self._owners.share(entry.owner)
            answer = await make(job, work, self._fleet, family, share, time.time())
            await self._finish(job, answer.outcome, answer.closing, None)
        except ClientGoneError:
            outcome = family.cancellation(body)
            await self._finish(job, outcome, family.last_event(outcome, job.next_number), None)
        except Refusal as refusal:
            if refusal.code == "shutting_down":
                await self._postpone(job)
            elif job.requests or entry.deaths or self._queue.runs(entry.name):
                again = refusal.code == "queue_full" and not job.requests
                if again and self._queue.put_back(entry.name):
                    job.release_share()
                    self._full.add(entry.model)
                else:
                    await self._fail(job, body, refusal)
            else:
                # The client, which waits, gets the refusal.
                await self._drop(job, refusal)
        except Exception:
            logger.exception("%s failed", entry.id)
            reason = "The gateway failed on this request; its log says why."
            await self._fail(job, body, Refusal("internal_error", reason))

    def _check(self, job: AnswerJob) -> None:
        """Raise if the answer must not be made.

        Raises:
            ClientGoneError: the job was cancelled.
            Refusal: the deadline has passed, or the gateway died during too many attempts.
        """
        entry = job.entry
        if job.cancelled:
            raise ClientGoneError
        if entry.deadline_at <= time.time():
            raise Refusal(
                "deadline_exceeded",
                f"It waited for its turn until its deadline of "
                f"{entry.deadline_at - entry.created_at:g} s passed; X-Deadline-S sets another.",
                lasting=True,
            )
        if entry.deaths >= _MOST_DEATHS:
            raise Refusal(
                "internal_error",
                f"The gateway ended {entry.deaths} times while this answer was made, which isn't "
                "tried again: see the gateway's log.",
                lasting=True,
            )

    async def _fail(self, job: AnswerJob, body: bytes, refusal: Refusal) -> None:
        family = self._families[job.entry.api]
        outcome = family.failure(body, refusal)
        last = family.last_event(outcome, job.next_number) if job.events else b""
        await self._finish(job, outcome, last, refusal)

    async def _postpone(self, job: AnswerJob) -> None:
        """End a job whose answer is made after the gateway's next start."""
        with contextlib.suppress(Refusal):
            await self._archive.write(self._archive.store.put_back, job.entry)
        self._forget(job)
        job.end(None, _made_later())

    async def _drop(self, job: AnswerJob, refusal: Refusal) -> None:
        with contextlib.suppress(Refusal):
            await self._archive.write(self._archive.store.delete, job.entry.name)
        self._forget(job)
        job.end(None, refusal)

    async def _finish(
        self, job: AnswerJob, outcome: AnswerOutcome, last_events: bytes, refusal: Refusal | None
    ) -> None:
        """End a job: write the outcome to the file, and then give it to followers."""
        entry, usage = job.entry, job.usage
        entry.status, entry.ended_at = outcome.status, time.time()
        if entry.owner and usage is not None:
            self._owners.spend(entry.owner, usage)
            job.drop_tokens()
        if entry.streams:
            events = b"".join(job.events) + last_events
            outcome = msgspec.structs.replace(outcome, events=events)
        if not job.deleted:
            await self._write(job, outcome)
        self._forget(job)
        job.record(last_events)
        job.end(outcome, refusal)
        self._wake.set()
        logger.info(
            "%s: %s",
            entry.id,
            entry.status,
            extra=about(
                key=entry.key,
                model=entry.model,
                prompt_tokens=usage and usage.prompt_tokens,
                cached_tokens=usage and usage.cached_tokens,
                completion_tokens=usage and usage.completion_tokens,
                seconds=round(entry.ended_at - entry.created_at, 3),
                refused=refusal and refusal.code,
            ),
        )

    async def _write(self, job: AnswerJob, outcome: AnswerOutcome) -> None:
        archive, store = self._archive, self._archive.store
        try:
            written = await archive.write(
                store.finish, job.entry, outcome, Retention.of(self._fleet.settings.mailbox)
            )
            if not written and job.renewals != archive.renewals and not job.deleted:
                # The entry was lost with a damaged file.
                await archive.write(
                    store.put, job.entry, outcome, b"", Retention.of(self._fleet.settings.mailbox)
                )
        except Refusal as refusal:
            logger.warning("%s is not in the mailbox's file yet: %s", job.entry.id, refusal.message)
            self._unwritten[job.entry.name] = job, outcome

    async def _write_unwritten(self) -> None:
        for name, (job, outcome) in list(self._unwritten.items()):
            del self._unwritten[name]
            await self._write(job, outcome)
            if name in self._unwritten:
                return

    def _forget(self, job: AnswerJob) -> None:
        self._queue.remove(job.entry.name)
        self._jobs.pop(job.entry.name, None)


def _made_later() -> Refusal:
    return Refusal(
        "shutting_down",
        "The gateway is shutting down; this answer is kept, and is made after its next start: "
        "fetch it then by its id.",
        lasting=True,
    )
