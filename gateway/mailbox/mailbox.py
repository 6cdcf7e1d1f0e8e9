"""Accepts answers that are to be made whatever happens, has them made, and keeps them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from gateway.access.seat import Seat
from gateway.mailbox.archive import ANSWER_S, Archive
from gateway.mailbox.entry import Api, Entry, Found, Name, Outcome, Work
from gateway.mailbox.family import Family
from gateway.mailbox.job import Job
from gateway.mailbox.making import make
from gateway.mailbox.queue import BackgroundQueue, Turn
from gateway.mailbox.retention import Retention, share_of_free
from gateway.models.fleet import Fleet
from gateway.requests.byte_budget import ByteBudget
from gateway.requests.request import ClientGoneError
from gateway.requests.share import Share
from gateway.system.log_lines import about
from gateway.system.refusal import Refusal
from gateway.system.tasks import Tasks
from protocol.answers import Usage

logger = logging.getLogger(__name__)

_TICK_S: Final = 1.0
_EXPIRE_S: Final = 30.0
_RETRY_AFTER_S: Final = 30
# An answer that ends the gateway each time must not do so for ever.
_MOST_DEATHS: Final = 16


class Owners(Protocol):
    """Those whom answers belong to, by their keys."""

    def opens(self, owner: str) -> bool:
        """Whether the key was not revoked."""

    def spend(self, owner: str, usage: Usage) -> None:
        """Count what was computed for it: no request that ends does that here."""

    def seat(self, owner: str) -> Seat | None:
        """A place among those that the key has at once; None: it has no bound."""

    def exhausted(self, owner: str) -> bool:
        """Whether the key has had what it may have in a minute."""


class Mailbox:
    """Everything runs on the event loop, but for the file."""

    def __init__(
        self,
        path: Path,
        fleet: Fleet,
        families: Mapping[Api, Family],
        owners: Owners,
        budget: ByteBudget,
    ) -> None:
        """`budget` is what all requests share."""
        self._owners = owners
        self._budget = budget
        self._fleet = fleet
        self._families = families
        self._archive = Archive(path, fleet.events)
        self._tasks = Tasks("mailbox")
        self._queue = BackgroundQueue()
        self._jobs: dict[Name, Job] = {}
        # Ends that couldn't be written down yet. Nothing new begins as long as there are some.
        self._unwritten: dict[Name, tuple[Job, Outcome]] = {}
        # By owners.
        self._accepting: Counter[str] = Counter()
        # What the gateway before this one is making yet, and whether one after this makes the rest.
        self._elsewhere: frozenset[Name] = frozenset()
        self._leaving = False
        # Models whose own queues were full when this was looked at last.
        self._full: set[str] = set()
        self._wake = asyncio.Event()

    @property
    def trouble(self) -> str | None:
        """Why nothing can be stored at present, in words; None: as far as is known, it can."""
        return self._archive.trouble or self._archive.failure

    def start(self) -> None:
        """Go on with what was accepted before, and look after it from now on."""
        self._tasks.keep(self._look_after, "file", _EXPIRE_S)
        self._tasks.keep(self._turn, "queue", 0.0)

    # From one gateway to the next

    def hand_over(self) -> list[Name]:
        """Begin with nothing more; which answers go on to be made here, or before this gateway."""
        self._leaving = True
        here = [name for name in self._jobs if not self._queue.waits(name)]
        return [*here, *self._elsewhere]

    def take_back(self) -> None:
        """There is no other gateway after all."""
        self._leaving = False
        self._wake.set()

    def leave(self) -> None:
        """Another gateway makes those that wait."""
        for job in list(self._jobs.values()):
            if self._queue.waits(job.entry.name):
                self._forget(job)
                job.end(None, _made_elsewhere())

    @property
    def making(self) -> int:
        """Answers that aren't over here."""
        return len(self._jobs) + len(self._unwritten)

    def leave_out(self, names: Collection[Name]) -> None:
        """An earlier gateway is making these. To be called before `start`."""
        self._elsewhere = frozenset(names)

    async def restore(self) -> None:
        """That gateway is gone: what it has not made is made here."""
        names, self._elsewhere = self._elsewhere, frozenset()
        if not names or self._leaving:
            # Or the next gateway makes them, once this one is gone.
            return
        with contextlib.suppress(Refusal):
            archive = self._archive
            for entry in await archive.read(archive.store.pending, names):
                self._restore(entry)
        self._wake.set()

    # Taking in

    async def accept(
        self,
        entry: Entry,
        work: Work,
        items: bytes,
        body: bytes,
        share: Share,
        seat: Seat | None,
        *,
        streams: bool = False,
    ) -> Job:
        """It will be made from now on: at once, or in the background when its turn has come. It
        holds the `seat` of who asks until its end, and if it is made at once the `share`, too. With
        `streams` somebody follows its events now, whether or not they are kept.

        Raises:
            Refusal: its queue is full, it can't be written down, or its name is taken.
        """
        self._fleet.check_serves()
        if entry.background:
            self._check_depth(entry.owner)
            self._accepting[entry.owner] += 1
        try:
            archive, store = self._archive, self._archive.store
            encoded = work.encode()
            await archive.write(store.add, entry, encoded, items, body, self._retention)
        finally:
            if entry.background:
                self._accepting[entry.owner] -= 1
        if seat is not None:
            seat.hold()
        renewals = self._archive.renewals
        job = Job(entry, streams=entry.streams or streams, renewals=renewals, seat=seat)
        self._jobs[entry.name] = job
        if entry.background and not self._leaving:
            self._queue.restore(_turn_of(entry))
            self._wake.set()
        else:
            job.hold(share)
            self._tasks.start(self._run(job, work, body), entry.id)
        return job

    def _check_depth(self, owner: str) -> None:
        """Raises: Refusal: as many wait as may."""
        depth = self._fleet.settings.mailbox.depth
        waiting = self._queue.owners + self._accepting
        total = waiting.total()
        most = share_of_free(depth, total - waiting[owner]) if owner else depth
        if total >= depth or waiting[owner] >= most:
            whose = " of this API key" if total < depth else ""
            raise Refusal(
                "queue_full",
                f"{waiting[owner] if whose else total} background responses{whose} wait already, "
                "as many as mailbox.depth allows: try again later.",
                retry_after_s=_RETRY_AFTER_S,
            )

    def open(self, job: Job, body: bytes) -> None:
        """Record the first events of one that waits, by its body, if they aren't there."""
        if not job.events:
            job.record(self._families[job.entry.api].first_events(body, job.next_number))

    async def put(self, entry: Entry, outcome: Outcome, items: bytes) -> None:
        """Keep an answer that is there. Raises: Refusal: it can't be written down."""
        archive = self._archive
        await archive.write(archive.store.put, entry, outcome, items, self._retention)

    # Giving out

    def job(self, name: Name) -> Job | None:
        """If it is on its way."""
        return self._jobs.get(name)

    async def find(
        self, name: Name, share: Share, *, items: bool = False, events: bool = False
    ) -> Found | None:
        """With its items and events, if these are wanted; `share` counts them.

        Raises:
            Refusal: it can't be read, or the share has no room for it.
        """
        found = await self._archive.read(self._archive.store.find, name, items, events, share.take)
        if found is None or name not in self._unwritten:
            return found
        job, outcome = self._unwritten[name]
        return Found(job.entry, outcome.http_status, outcome.body, found.items, outcome.events)

    async def entries(
        self,
        owner: str,
        api: Api,
        after: str | None,
        count: int,
        share: Share,
        *,
        newest_first: bool,
    ) -> list[tuple[Entry, bytes]]:
        """Raises: Refusal: the file can't be read, or the share has no room for it."""
        look = functools.partial(self._archive.store.entries, newest_first=newest_first)
        return await self._archive.read(look, owner, api, after, count, share.take)

    async def cancel(self, name: Name) -> None:
        """End it, if it isn't over; returns once it is, or after a while."""
        if (job := self._jobs.get(name)) is None:
            return
        job.cancel()
        if self._queue.take(name):
            self._tasks.start(self._run_queued(job), job.entry.id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await job.settled.wait()

    async def delete(self, name: Name) -> bool:
        """Whether there was one. Raises: Refusal: the file can't be written."""
        existed = await self._archive.write(self._archive.store.delete, name)
        self._unwritten.pop(name, None)
        if (job := self._jobs.get(name)) is not None:
            job.deleted = True
            await self.cancel(name)
        return existed

    async def close(self) -> None:
        """To be called once all requests were refused; what isn't there is the next start's."""
        for job in list(self._jobs.values()):
            if self._queue.waits(job.entry.name):
                job.end(None, _made_later())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                for job in list(self._jobs.values()):
                    await job.settled.wait()
        await self._write_unwritten()
        await self._tasks.cancel_all()
        await self._archive.close()

    # Turns

    async def _look_after(self) -> None:
        """Open the file if it isn't open, and let go of what is too old."""
        archive = self._archive
        if archive.trouble is not None:
            for entry in await archive.open(self._elsewhere):
                self._restore(entry)
            self._wake.set()
        if archive.trouble is None:
            with contextlib.suppress(Refusal):
                await archive.read(archive.store.expire, self._retention, time.time())

    def _restore(self, entry: Entry) -> None:
        if entry.name not in self._jobs:
            seat = self._owners.seat(entry.owner)
            renewals = self._archive.renewals
            job = Job(entry, streams=entry.streams, renewals=renewals, seat=seat)
            self._jobs[entry.name] = job
            self._queue.restore(_turn_of(entry))

    async def _turn(self) -> None:
        """Wait until there may be something to do, and do it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TICK_S):
                await self._wake.wait()
        self._wake.clear()
        self._full.clear()
        await self._write_unwritten()
        for late in self._queue.take_overdue(time.time()):
            self._start(late.name)
        for job in [each for each in self._jobs.values() if self._revoked(each)]:
            job.cancel()
            if self._queue.take(job.entry.name):
                self._start(job.entry.name)
        while (turn := self._next()) is not None:
            self._start(turn.name)

    def _revoked(self, job: Job) -> bool:
        """Its key opens nothing any more, so nobody could fetch it."""
        owner = job.entry.owner
        return bool(owner) and not job.cancelled and not self._owners.opens(owner)

    def _next(self) -> Turn | None:
        if self._unwritten or self._archive.trouble is not None or self._leaving:
            return None
        concurrency = self._fleet.settings.mailbox.concurrency
        spent = [owner for owner in self._queue.owners if self._owners.exhausted(owner)]
        return self._queue.next(concurrency, self._full, spent)

    def _start(self, name: Name) -> None:
        job = self._jobs[name]
        self._tasks.start(self._run_queued(job), job.entry.id)

    # One answer

    async def _run_queued(self, job: Job) -> None:
        entry = job.entry
        entry.attempts += 1
        share = Share(self._budget)
        job.hold(share)
        # The job's alone.
        share.release()
        try:
            found = await self._archive.write(self._archive.store.begin, entry, share.take)
        except Refusal:
            job.let_go()
            self._queue.put_back(entry.name)
            return
        if found is None:
            # Deleted meanwhile, or lost with a damaged file.
            self._forget(job)
            job.end(None, Refusal("not_found", f"{entry.id} is not in the mailbox any more."))
            return
        work, body = found
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

    async def _run(self, job: Job, work: Work, body: bytes) -> None:
        entry, family = job.entry, self._families[job.entry.api]
        try:
            self._check(job)
            made = await make(job, work, self._fleet, family, time.time())
            await self._settle(job, made.outcome, made.closing, None)
        except ClientGoneError:
            outcome = family.cancellation(body)
            await self._settle(job, outcome, family.last_event(outcome, job.next_number), None)
        except Refusal as refusal:
            if refusal.code == "shutting_down":
                await self._leave(job)
            elif job.requests or entry.deaths or self._queue.runs(entry.name):
                again = refusal.code == "queue_full" and not job.requests
                if again and self._queue.put_back(entry.name):
                    job.let_go()
                    self._full.add(entry.model)
                else:
                    await self._fail(job, body, refusal)
            else:
                # Its client hears that it wasn't taken.
                await self._drop(job, refusal)
        except Exception:
            logger.exception("%s failed", entry.id)
            reason = "The gateway failed on this request; its log says why."
            await self._fail(job, body, Refusal("internal_error", reason))

    def _check(self, job: Job) -> None:
        """Raises: ClientGoneError: it was cancelled; Refusal: it is too late for it."""
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
                f"The gateway ended {entry.deaths} times while this was made, and it isn't tried "
                "again: see its log.",
                lasting=True,
            )

    async def _fail(self, job: Job, body: bytes, refusal: Refusal) -> None:
        family = self._families[job.entry.api]
        outcome = family.failure(body, refusal)
        last = family.last_event(outcome, job.next_number) if job.events else b""
        await self._settle(job, outcome, last, refusal)

    async def _leave(self, job: Job) -> None:
        """For the next start."""
        with contextlib.suppress(Refusal):
            await self._archive.write(self._archive.store.put_back, job.entry)
        self._forget(job)
        job.end(None, _made_later())

    async def _drop(self, job: Job, refusal: Refusal) -> None:
        with contextlib.suppress(Refusal):
            await self._archive.write(self._archive.store.delete, job.entry.name)
        self._forget(job)
        job.end(None, refusal)

    async def _settle(
        self,
        job: Job,
        outcome: Outcome,
        last_events: bytes,
        refusal: Refusal | None,
    ) -> None:
        """Written down first, told afterwards."""
        entry, usage = job.entry, job.usage
        entry.status, entry.ended_at = outcome.status, time.time()
        if entry.owner and usage is not None:
            self._owners.spend(entry.owner, usage)
            job.counted()
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

    async def _write(self, job: Job, outcome: Outcome) -> None:
        archive, store = self._archive, self._archive.store
        try:
            written = await archive.write(store.finish, job.entry, outcome, self._retention)
            if not written and job.renewals != archive.renewals and not job.deleted:
                # Its place was lost with a damaged file.
                await archive.write(store.put, job.entry, outcome, b"", self._retention)
        except Refusal as refusal:
            logger.warning("%s is not written down yet: %s", job.entry.id, refusal.message)
            self._unwritten[job.entry.name] = job, outcome

    async def _write_unwritten(self) -> None:
        for name, (job, outcome) in list(self._unwritten.items()):
            del self._unwritten[name]
            await self._write(job, outcome)
            if name in self._unwritten:
                return

    def _forget(self, job: Job) -> None:
        self._queue.remove(job.entry.name)
        self._jobs.pop(job.entry.name, None)

    @property
    def _retention(self) -> Retention:
        settings = self._fleet.settings.mailbox
        return Retention(settings.keep_s, settings.size_bytes)


def _turn_of(entry: Entry) -> Turn:
    return Turn(entry.name, entry.model, entry.priority, entry.deadline_at)


def _made_elsewhere() -> Refusal:
    return Refusal(
        "shutting_down",
        "This gateway was replaced by another one, which makes this answer: fetch it there by its "
        "id.",
        retry_after_s=1,
    )


def _made_later() -> Refusal:
    return Refusal(
        "shutting_down",
        "The gateway is shutting down; this answer is kept, and is made after its next start: "
        "fetch it then by its id.",
        lasting=True,
    )
