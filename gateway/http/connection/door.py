"""All connections together: who gets in, who has to go, and what their bodies take."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final, Protocol

from gateway.http.connection.crowd import Crowd, Place
from gateway.http.connection.neighbourhood import neighbourhood
from gateway.http.connection.reception import Doing, Reception
from gateway.requests.share import ByteBudget
from gateway.system.refusal import Code, Refusal
from gateway.system.tasks import Tasks

# Eight of the largest bodies that are taken.
ALL_BODIES_BYTES: Final = 256 << 20
_TICK_S: Final = 0.5
_RETRY_AFTER_S: Final = 5


class Guest(Hashable, Protocol):
    """A connection, as far as this is about it."""

    reception: Reception

    def make_place(self) -> None:
        """End now, for another."""

    def overdue(self) -> None:
        """The deadline has passed."""


class Door:
    """`refused` counts what was answered without the application, by the code of the answer."""

    def __init__(self, capacity: Callable[[], int], from_one_place: Callable[[], int]) -> None:
        """How many connections there may be at present, in all and from one address."""
        self.refused: Counter[Code] = Counter()
        self.bodies = ByteBudget(ALL_BODIES_BYTES)
        # Gets the descriptors of connections that nobody is being served on; None: they stay.
        self.heir: Callable[[int], None] | None = None
        self._capacity = capacity
        self._from_one_place = from_one_place
        self._crowd: Crowd[Guest] = Crowd()
        self._guests: set[Guest] = set()

    def enter(self, guest: Guest, host: str) -> Place:
        """A new connection from this address; it is watched even if it gets no place, until it has
        left.
        """
        self._guests.add(guest)
        place, victim = self._crowd.enter(
            guest, self._capacity(), neighbourhood(host), self._from_one_place()
        )
        if victim is not None:
            victim.make_place()
        return place

    def turn(self, guest: Guest, doing: Doing) -> None:
        guest.reception.turn(doing, asyncio.get_running_loop().time())
        self._crowd.turn(guest, doing)

    def count(self, doing: Doing) -> int:
        """Of connections that are busy with this."""
        return self._crowd.count(doing)

    def leave(self, guest: Guest) -> None:
        self._guests.discard(guest)
        self._crowd.leave(guest)

    def watch(self, tasks: Tasks) -> None:
        """End what is overdue, from now on."""
        tasks.keep(functools.partial(self._look, tasks), "watch over connections", _TICK_S)

    async def _look(self, tasks: Tasks) -> None:
        now = asyncio.get_running_loop().time()
        for guest in [each for each in self._guests if each.reception.deadline_at <= now]:
            # A defect in one must not end the watch over all.
            tasks.attempt(guest.overdue, "end of an overdue connection")

    def no_place(self, place: Place) -> Refusal:
        """What those are told that got none."""
        return self.full() if place is Place.NONE else self._too_many()

    def _too_many(self) -> Refusal:
        return Refusal(
            "overloaded",
            f"{self._from_one_place()} connections from this address are being served already, "
            "the most that are allowed (gateway.max_connections_per_address): try again later.",
            retry_after_s=_RETRY_AFTER_S,
        )

    def full(self) -> Refusal:
        return Refusal(
            "overloaded",
            f"{len(self._crowd)} connections are being served already, the most that are allowed "
            "(gateway.max_connections, and the limit of open files): try again later.",
            retry_after_s=_RETRY_AFTER_S,
        )
