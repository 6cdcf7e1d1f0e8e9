"""The bounds on connections: their number, their times, and the bytes of their bodies."""

from __future__ import annotations

import asyncio
import functools
import math
from collections import Counter
from collections.abc import Callable, Hashable
from enum import Enum
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final, Generic, Protocol, TypeVar

from gateway.requests.share import ByteBudget
from gateway.system.notation import is_loopback_address
from gateway.system.refusal import Code, Refusal
from gateway.system.tasks import Tasks

# Longer than clients and proxies keep a connection for later use (aiohttp 15 s, nginx 60 s; httpx
# and Node 5 s): who closes first must be the one that would use it again.
IDLE_S: Final = 75.0
HEAD_S: Final = 20.0
# For TLS's handshake: a few packets to and fro.
HANDSHAKE_S: Final = 10.0
BODY_S: Final = 30.0
# A slower body than this must be done within BODY_S.
BODY_BYTES_PER_S: Final = 512 << 10
# Also for an answer that is written and not taken: the system holds what fits its buffers.
UNREAD_S: Final = 60.0
LEAVING_S: Final = 30.0


class Doing(Enum):
    """What a connection is busy with. LEAVING: it is closed once its client has read the rest."""

    HANDSHAKE = "shaking hands"
    IDLE = "idle"
    HEAD = "sending its head"
    BODY = "sending its body"
    SERVED = "being served"
    LEAVING = "leaving"


_ALLOWED_S: Final = {
    Doing.HANDSHAKE: HANDSHAKE_S,
    Doing.IDLE: IDLE_S,
    Doing.HEAD: HEAD_S,
    Doing.BODY: BODY_S,
    Doing.SERVED: math.inf,
    Doing.LEAVING: LEAVING_S,
}


class ClientTimeouts:
    """What the client of a connection is doing, and until when it may. Times are in seconds of one
    clock.
    """

    def __init__(self, now: float) -> None:
        self.doing = Doing.IDLE
        self._until = now + _ALLOWED_S[Doing.IDLE]
        self._unread_until = math.inf

    @property
    def deadline_at(self) -> float:
        """Infinite while the gateway is to act."""
        return min(self._until, self._unread_until)

    def turn(self, doing: Doing, now: float) -> None:
        """The client is doing this now. Doing the same as before gives it no more time."""
        if doing is not self.doing:
            self.doing = doing
            self._until = now + _ALLOWED_S[doing]

    def received(self, body_bytes: int) -> None:
        """A part of a body has come, which extends the deadline."""
        if self.doing is Doing.BODY:
            self._until += body_bytes / BODY_BYTES_PER_S

    def blocked(self, now: float) -> None:
        """The client doesn't take what is written."""
        self._unread_until = now + UNREAD_S

    def unblocked(self) -> None:
        self._unread_until = math.inf


# Beyond the bound, for health checks: an operator must see why nobody else gets in.
SPARE_PLACES: Final = 32

Key = TypeVar("Key", bound=Hashable)


class Place(Enum):
    """What a new connection gets. PROBE: only health checks are answered. TOO_MANY: its network has
    as many connections as are allowed, and all are being served.
    """

    FULL = "full"
    PROBE = "probe"
    NONE = "none"
    TOO_MANY = "too many"


class ConnectionTable(Generic[Key]):
    """All connections, by what they are busy with.

    A connection that is being served is never ended for a new one. Others are, the longest idle
    first: a client that opens thousands must not keep others out. A network at its own bound makes
    place for a new connection with one of its own.
    """

    def __init__(self) -> None:
        # Dictionaries keep the order in which keys came in.
        self._among: dict[Doing, dict[Key, None]] = {doing: {} for doing in Doing}
        self._doing: dict[Key, Doing] = {}
        self._network: dict[Key, str] = {}
        self._from: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._doing)

    def count(self, doing: Doing) -> int:
        return len(self._among[doing])

    def enter(
        self, key: Key, most: int, network: str | None = None, most_from_there: int = 0
    ) -> tuple[Place, Key | None]:
        """Add a connection where `most` are allowed. Returns its place, and the connection that has
        to end for it, if any. Without a place it isn't added. `network` is where it comes from;
        None: no bound on connections from one network applies to it.
        """
        if network is not None and self._from[network] >= most_from_there:
            victim = self._to_end(network)
            if victim is None:
                return Place.TOO_MANY, None
        else:
            victim = self._to_end() if len(self) >= most else None
        if victim is not None:
            self.leave(victim)
        if len(self) >= most + SPARE_PLACES:
            return Place.NONE, None
        if network is not None:
            self._network[key] = network
            self._from[network] += 1
        self._doing[key] = Doing.IDLE
        self._among[Doing.IDLE][key] = None
        return Place.FULL if len(self) <= most else Place.PROBE, victim

    def turn(self, key: Key, doing: Doing) -> None:
        """The connection is busy with this now. One that has left already isn't added again."""
        before = self._doing.get(key)
        if before is not None and before is not doing:
            del self._among[before][key]
            self._among[doing][key] = None
            self._doing[key] = doing

    def leave(self, key: Key) -> None:
        before = self._doing.pop(key, None)
        if before is not None:
            del self._among[before][key]
        network = self._network.pop(key, None)
        if network is not None:
            self._from[network] -= 1
            if not self._from[network]:
                del self._from[network]

    def _to_end(self, network: str | None = None) -> Key | None:
        for doing in (Doing.LEAVING, Doing.HANDSHAKE, Doing.IDLE, Doing.HEAD, Doing.BODY):
            for key in self._among[doing]:
                if network is None or self._network.get(key) == network:
                    return key
        return None


# A household or a machine gets a network of this size in IPv6, and may use any address of it.
_OWN_BITS: Final = 64


def network_of(host: str) -> str | None:
    """An address, or for IPv6 the network that it is in. None for this machine: all clients behind
    a proxy or a tunnel come from it.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if is_loopback_address(address):
        return None
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return str(IPv6Network((address, _OWN_BITS), strict=False))
        address = address.ipv4_mapped
    return str(address)


# Eight of the largest bodies that are taken.
ALL_BODIES_BYTES: Final = 256 << 20
_TICK_S: Final = 0.5
_RETRY_AFTER_S: Final = 5


class TrackedConnection(Hashable, Protocol):
    """A connection as the limiter sees it."""

    timeouts: ClientTimeouts

    def make_place(self) -> None:
        """End now, for another."""

    def overdue(self) -> None:
        """The deadline has passed."""


class ConnectionLimiter:
    """Bounds the connections and what their bodies hold, and ends overdue ones.

    `refused` counts connections and requests that were refused before the application, by code.
    """

    def __init__(self, capacity: Callable[[], int], from_one_place: Callable[[], int]) -> None:
        """Both say how many connections may be open at present: in all, and from one network."""
        self.refused: Counter[Code] = Counter()
        self.bodies = ByteBudget(ALL_BODIES_BYTES)
        # Gets the descriptors of connections on which no request is being served; None: they stay.
        self.heir: Callable[[int], None] | None = None
        self._capacity = capacity
        self._from_one_place = from_one_place
        self._table: ConnectionTable[TrackedConnection] = ConnectionTable()
        self._tracked: set[TrackedConnection] = set()

    def enter(self, connection: TrackedConnection, host: str) -> Place:
        """Add a connection from the address `host`. It is watched until it leaves, even if it gets
        no place.
        """
        self._tracked.add(connection)
        place, victim = self._table.enter(
            connection, self._capacity(), network_of(host), self._from_one_place()
        )
        if victim is not None:
            victim.make_place()
        return place

    def turn(self, connection: TrackedConnection, doing: Doing) -> None:
        connection.timeouts.turn(doing, asyncio.get_running_loop().time())
        self._table.turn(connection, doing)

    def count(self, doing: Doing) -> int:
        """How many connections are busy with this."""
        return self._table.count(doing)

    def leave(self, connection: TrackedConnection) -> None:
        self._tracked.discard(connection)
        self._table.leave(connection)

    def watch(self, tasks: Tasks) -> None:
        """End overdue connections from now on."""
        tasks.keep(functools.partial(self._look, tasks), "watch over connections", _TICK_S)

    async def _look(self, tasks: Tasks) -> None:
        now = asyncio.get_running_loop().time()
        for connection in [each for each in self._tracked if each.timeouts.deadline_at <= now]:
            # A defect in one must not end the watch over all.
            tasks.attempt(connection.overdue, "end of an overdue connection")

    def no_place(self, place: Place) -> Refusal:
        """The answer for a connection without a place."""
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
            f"{len(self._table)} connections are being served already, the most that are allowed "
            "(gateway.max_connections, and the limit of open files): try again later.",
            retry_after_s=_RETRY_AFTER_S,
        )


# The log, the listener, the event loop, ZeroMQ's own, files that are read; and connections that
# are accepted before an earlier one's descriptor is free.
_OWN_FILES: Final = 96
# A worker's output, its log, its record, its endpoint's sockets, and what a reading of it opens.
_FILES_PER_WORKER: Final = 16
# With fewer nobody could ask what is wrong.
_LEAST: Final = 8


def capacity(most: int, files: int, workers: int) -> int:
    """How many connections there may be, where `most` are wanted, so many files may be open, and
    there may be so many workers.
    """
    return max(_LEAST, min(most, files - _OWN_FILES - _FILES_PER_WORKER * workers))
