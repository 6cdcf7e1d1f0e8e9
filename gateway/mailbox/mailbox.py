"""Accepts answers that are made even after a crash, stores them, and returns them to clients."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

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


class MailboxState(Struct, frozen=True):
    """`making` names the answers that a gateway, or one before it, still makes."""

    making: tuple[Name, ...]


class Mailbox:
    """The answers that wait for their clients; `maker` makes them. Everything runs on the event
    loop, except calls of the file.
    """

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
        # For each owner: how many background answers are being written to the file, and not queued
        # yet.
        self._accepting: Counter[str] = Counter()
        # The answers that the gateway before this one still makes.
        self._elsewhere: frozenset[Name] = frozenset()

    @property
    def trouble(self) -> str | None:
        """Why answers can't be stored now, in words; None: no trouble is known."""
        return self._archive.trouble or self._archive.failure

    def start(self) -> None:
        """Begin to look after the file, and to make the answers that were accepted before."""
        self._tasks.repeat(self._look_after, "file", _EXPIRE_S)
        self.maker.start()

    async def close(self) -> None:
        """Close the file. To be called once all requests were refused. Unfinished answers are made
        after the gateway's next start.
        """
        await self.maker.close()
        await self._tasks.cancel_all()
        await self._archive.close()

    # From one gateway to the next

    def suspend(self) -> None:
        """Begin no more answers, as another gateway is about to make them."""
        self.maker.leaving = True

    def go_on(self) -> None:
        """Begin answers again, as no other gateway has taken over."""
        self.maker.leaving = False
        self.maker.wake()

    def give_up_waiting(self) -> None:
        """Give up the waiting answers, as another gateway makes them."""
        self.maker.refuse_waiting(_made_elsewhere())

    @property
    def state(self) -> MailboxState:
        return MailboxState((*self.maker.in_progress, *self._elsewhere))

    def restore(self, state: MailboxState) -> None:
        """Leave the answers of `state` to the earlier gateway. To be called before `start`."""
        self._elsewhere = frozenset(state.making)

    async def queue_left_out(self) -> None:
        """Queue the answers that were left to the earlier gateway, and that it has not made."""
        names, self._elsewhere = self._elsewhere, frozenset()
        if not names or self.maker.leaving:
            # If this gateway is leaving, the next gateway makes these answers.
            return
        with contextlib.suppress(Refusal):
            for entry in await self._archive.read(self._archive.store.pending, names):
                self.maker.queue_again(entry)

    # New answers

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
        """Accept an answer. The answer is made at once, or in the background when its turn has
        come. Its job holds `seat` until its end; if the answer is made at once, the job also holds
        `share`. With `streams` a client follows the events now, even if the events are not stored.

        Raises:
            Refusal: the queue is full, the answer can't be written to the file, or its name is
                taken.
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
            self.maker.make_now(job, share, work, body)
        return job

    def _check_depth(self, owner: str) -> None:
        """Raises: Refusal: the queue is full, or the owner's share of the queue."""
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
        """Store an answer that is over. Raises: Refusal: it can't be written to the file."""
        archive = self._archive
        await archive.write(archive.store.put, entry, outcome, items, self._retention)

    # Stored answers

    async def find(
        self, name: Name, share: Share, *, items: bool = False, events: bool = False
    ) -> StoredAnswer | None:
        """An answer, with its items and events if these are wanted. `share` counts their bytes.

        Raises:
            Refusal: the file can't be read, or the share has no room for the answer.
        """
        stored = await self._archive.read(
            self._archive.store.find, name, items, events, share.reserve
        )
        unwritten = self.maker.unwritten(name)
        if stored is None or unwritten is None:
            return stored
        job, outcome = unwritten
        return StoredAnswer(
            job.entry, outcome.http_status, outcome.body, stored.items, outcome.events
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
        """At most `count` answers of an owner, with their bodies. With `after`, the id of an
        answer, they begin behind that answer.

        Raises: Refusal: the file can't be read, or the share has no room.
        """
        look = functools.partial(self._archive.store.entries, newest_first=newest_first)
        return await self._archive.read(look, owner, api, after, count, share.reserve)

    async def cancel(self, name: Name) -> None:
        """Cancel an answer that isn't over. Returns at the end of its job, or after `ANSWER_S`."""
        if (job := self.maker.job(name)) is None:
            return
        self.maker.cancel(job)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await job.ended.wait()

    async def delete(self, name: Name) -> bool:
        """Delete an answer. Returns whether the file had it. Raises: Refusal: the file can't be
        written.
        """
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
