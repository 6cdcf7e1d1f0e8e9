"""An answer that is being made, or waits for that, whoever listens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from gateway.access.seat import Seat
from gateway.mailbox.entry import Entry, Outcome
from gateway.models.choices import usage_of
from gateway.models.compartment import Compartment
from gateway.requests.request import Request
from gateway.requests.share import Share
from gateway.system.refusal import Refusal
from protocol.answers import Usage

# Each attempt numbers its events beyond those of the one before: who comes back with a number of
# an attempt that a crash has ended gets the whole new stream.
NUMBERS_PER_ATTEMPT: Final = 1_000_000
_END: Final = b"\n\n"


class Job:
    """With `streams` its events are recorded, for followers who come back as well. Everything runs
    on the event loop.
    """

    def __init__(
        self, entry: Entry, *, streams: bool, renewals: int, seat: Seat | None = None
    ) -> None:
        """`renewals` is how often the file had been begun anew when it was written there. The job
        releases the `seat` of its key.
        """
        self.entry = entry
        self.streams = streams
        self.renewals = renewals
        self.events: list[bytes] = []
        self.first_number = first_number(entry.attempts)
        self.requests: list[Request] = []
        self.outcome: Outcome | None = None
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
        """Nothing more will come of it, at least until the gateway's next start."""
        return self.settled.is_set()

    @property
    def next_number(self) -> int:
        return self.first_number + len(self.events)

    @property
    def usage(self) -> Usage | None:
        """What was computed for it, whatever came of it; None: nothing was."""
        spent = [each.spent for each in self.requests if each.spent is not None]
        return usage_of(spent, len(spent)) if spent else None

    def hold(self, share: Share) -> None:
        """What it is made from is in memory, whether or not its client is there."""
        share.hold()
        self._share = share

    def let_go(self) -> None:
        """What it is made from isn't in memory any more."""
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
        """What it took is in its key's account by now."""
        if self._seat is not None:
            self._seat.answers = ()

    def cancel(self) -> None:
        """Whoever makes it stops."""
        self.cancelled = True
        self.release()
        for each in self.requests:
            each.abandon()

    def release(self) -> None:
        """Nobody reads its requests any more."""
        for each in self.requests:
            if not each.over and self._compartment is not None:
                self._compartment.traffic.cancel(each)

    def record(self, chunk: bytes) -> None:
        """Some whole events."""
        if chunk and self.streams:
            self.events += split(chunk)
            self._notify()

    def end(self, outcome: Outcome | None, refusal: Refusal | None) -> None:
        """Without an outcome it is made after the gateway's next start."""
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
                # Whoever fetches it later gets it whole.
                self.streams = False
                self.events.clear()
            elif not self._followers and self._share is None and not self.over:
                # As long as it waits they can be made anew from what is written down.
                self.events.clear()

    def _notify(self) -> None:
        for each in self._followers:
            each.set()


def first_number(attempts_before: int) -> int:
    """Of the events of the next attempt."""
    return attempts_before * NUMBERS_PER_ATTEMPT


def split(events: bytes) -> list[bytes]:
    """The single events of a stream."""
    return [each + _END for each in events.split(_END)[:-1]]
