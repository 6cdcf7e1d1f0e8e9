"""Accepts answers that are made even after a crash, keeps them, and returns them to clients."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from gateway.access.limits import Seat
from gateway.mailbox.archive import ANSWER_S, Archive
from gateway.mailbox.entry import (
    AnswerOutcome,
    Api,
    MailboxEntry,
    Name,
    Retention,
    StoredAnswer,
    Work,
    share_of_free,
)
from gateway.mailbox.jobs import AnswerFamily, AnswerJob
from gateway.mailbox.maker import Maker, Owners
from gateway.models.fleet import Fleet
from gateway.requests.share import ByteBudget, Share
from gateway.system.refusal import Refusal
from gateway.system.tasks import Tasks

_EXPIRE_S: Final = 30.0
_RETRY_AFTER_S: Final = 30


class Mailbox:
    """`maker` makes the answers. Everything runs on the event loop, but for the file."""

    def __init__(
        self,
        path: Path,
        fleet: Fleet,
        families: Mapping[Api, AnswerFamily],
        owners: Owners,
        budget: ByteBudget,
    ) -> None:
        """`budget` is the memory that all requests share."""
        self._fleet = fleet
        self._archive = Archive(path, fleet.events)
        self.maker = Maker(fleet, families, owners, budget, self._archive)
        self._tasks = Tasks("mailbox's file")
        # The number of each owner's answers that are being written to the file, to wait.
        self._accepting: Counter[str] = Counter()
        # The answers that the gateway before this one still makes.
        self._elsewhere: frozenset[Name] = frozenset()

    @property
    def trouble(self) -> str | None:
        """Why answers can't be stored now, in words; None: as far as is known, they can."""
        return self._archive.trouble or self._archive.failure

    def start(self) -> None:
        """Go on with the answers that were accepted before, and begin the care of the file."""
        self._tasks.keep(self._look_after, "file", _EXPIRE_S)
        self.maker.start()

    async def close(self) -> None:
        """Call this once all requests were refused. The next start makes unfinished answers."""
        await self.maker.close()
        await self._tasks.cancel_all()
        await self._archive.close()

    # From one gateway to the next

    def hand_over(self) -> list[Name]:
        """Begin no more answers. Returns those that are being made here, or by an earlier
        gateway.
        """
        self.maker.leaving = True
        return [*self.maker.begun, *self._elsewhere]

    def take_back(self) -> None:
        """Begin answers again, as no other gateway has taken over."""
        self.maker.leaving = False
        self.maker.wake()

    def leave(self) -> None:
        """Give up the answers that wait, as another gateway makes them."""
        self.maker.let_go_of_waiting(_made_elsewhere())

    def leave_out(self, names: Collection[Name]) -> None:
        """Leave out these answers, which an earlier gateway makes. Call this before `start`."""
        self._elsewhere = frozenset(names)

    async def restore(self) -> None:
        """Make the answers here that the earlier gateway, which has ended, has not made."""
        names, self._elsewhere = self._elsewhere, frozenset()
        if not names or self.maker.leaving:
            # When this one is leaving, the next gateway makes them.
            return
        with contextlib.suppress(Refusal):
            for entry in await self._archive.read(self._archive.store.pending, names):
                self.maker.queue_again(entry)

    # Taking in

    async def accept(
        self,
        entry: MailboxEntry,
        work: Work,
        items: bytes,
        body: bytes,
        share: Share,
        seat: Seat | None,
        *,
        streams: bool = False,
    ) -> AnswerJob:
        """Accept an answer. It is made at once, or in the background when its turn has come. Its
        job holds the `seat` of its key until its end, and if it is made at once the `share`, too.
        With `streams` a client follows its events now, whether or not they are kept.

        Raises:
            Refusal: the queue is full, it can't be written to the file, or its name is taken.
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
        job = AnswerJob(entry, streams=entry.streams or streams, renewals=renewals, seat=seat)
        if entry.background and not self.maker.leaving:
            self.maker.queue(job)
        else:
            self.maker.begin(job, share, work, body)
        return job

    def _check_depth(self, owner: str) -> None:
        """Raises: Refusal: the queue, or the owner's part of it, is full."""
        depth = self._fleet.settings.mailbox.depth
        waiting = self.maker.waiting + self._accepting
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

    async def put(self, entry: MailboxEntry, outcome: AnswerOutcome, items: bytes) -> None:
        """Keep an answer that is over. Raises: Refusal: it can't be written to the file."""
        archive = self._archive
        await archive.write(archive.store.put, entry, outcome, items, self._retention)

    # Giving out

    async def find(
        self, name: Name, share: Share, *, items: bool = False, events: bool = False
    ) -> StoredAnswer | None:
        """An answer, with its items and events if these are wanted; `share` counts their bytes.

        Raises:
            Refusal: it can't be read, or the share has no room for it.
        """
        found = await self._archive.read(self._archive.store.find, name, items, events, share.take)
        unwritten = self.maker.unwritten(name)
        if found is None or unwritten is None:
            return found
        job, outcome = unwritten
        return StoredAnswer(
            job.entry, outcome.http_status, outcome.body, found.items, outcome.events
        )

    async def entries(
        self,
        owner: str,
        api: Api,
        after: str | None,
        count: int,
        share: Share,
        *,
        newest_first: bool,
    ) -> list[tuple[MailboxEntry, bytes]]:
        """`count` answers of an owner with their bodies, behind the one with the id `after`.

        Raises: Refusal: the file can't be read, or the share has no room.
        """
        look = functools.partial(self._archive.store.entries, newest_first=newest_first)
        return await self._archive.read(look, owner, api, after, count, share.take)

    async def cancel(self, name: Name) -> None:
        """Cancel an answer, unless it is over; returns at its end, or after a while."""
        if (job := self.maker.job(name)) is None:
            return
        self.maker.cancel(job)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await job.settled.wait()

    async def delete(self, name: Name) -> bool:
        """Delete an answer; whether there was one. Raises: Refusal: the file can't be written."""
        existed = await self._archive.write(self._archive.store.delete, name)
        self.maker.forget_unwritten(name)
        if (job := self.maker.job(name)) is not None:
            job.deleted = True
            await self.cancel(name)
        return existed

    # Inside

    async def _look_after(self) -> None:
        """Open the file if it isn't open, and remove answers that are too old."""
        archive = self._archive
        if archive.trouble is not None:
            for entry in await archive.open(self._elsewhere):
                self.maker.queue_again(entry)
            self.maker.wake()
        if archive.trouble is None:
            with contextlib.suppress(Refusal):
                await archive.read(archive.store.expire, self._retention, time.time())

    @property
    def _retention(self) -> Retention:
        return Retention.of(self._fleet.settings.mailbox)


def _made_elsewhere() -> Refusal:
    return Refusal(
        "shutting_down",
        "This gateway was replaced by another one, which makes this answer: fetch it there by its "
        "id.",
        retry_after_s=1,
    )
