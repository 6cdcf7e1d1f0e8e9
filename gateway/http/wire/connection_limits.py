"""The bounds on connections: their number, the time for each activity, also for TLS handshakes,
and the bytes of their bodies.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Hashable
from enum import Enum
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from uvicorn.protocols.utils import get_remote_addr

from gateway.requests.share import ByteBudget
from gateway.system.notation import is_loopback_address
from gateway.system.process_limits import needed_files
from gateway.system.refusal import Code, Refusal
from gateway.system.tasks import Tasks

# Longer than clients and proxies keep an idle connection (aiohttp 15 s, nginx 60 s; httpx and Node
# 5 s): if the server closed first, a client could send a request on a closed connection.
IDLE_S: Final = 75.0
HEAD_S: Final = 20.0
# For the few packets of a TLS handshake.
HANDSHAKE_S: Final = 10.0
BODY_S: Final = 30.0
# A body must come within BODY_S, and one more second for each so many bytes of it.
BODY_BYTES_PER_S: Final = 512 << 10
# The longest time for which a client may not read. The system may buffer the rest of an answer.
UNREAD_S: Final = 60.0
LEAVING_S: Final = 30.0


class Doing(Enum):
    """The activity of a connection. LEAVING: the last answer was sent, and the connection closes
    once the client has read the rest.
    """

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
    """The activity of a connection, and the client's deadline for it. Times are seconds of one
    clock.
    """

    def __init__(self, now: float) -> None:
        self.doing = Doing.IDLE
        self._until = now + _ALLOWED_S[Doing.IDLE]
        self._unread_until = math.inf

    @property
    def deadline_at(self) -> float:
        """The present deadline; infinite while the client is waiting for the gateway."""
        return min(self._until, self._unread_until)

    def turn(self, doing: Doing, now: float) -> None:
        """The activity is now `doing`. If it was the same before, the deadline stays."""
        if doing is not self.doing:
            self.doing = doing
            self._until = now + _ALLOWED_S[doing]

    def received(self, body_bytes: int) -> None:
        """A part of a body has come, which extends the deadline."""
        if self.doing is Doing.BODY:
            self._until += body_bytes / BODY_BYTES_PER_S

    def blocked(self, now: float) -> None:
        """The client doesn't read what was written to it."""
        self._unread_until = now + UNREAD_S

    def unblocked(self) -> None:
        self._unread_until = math.inf


# Places beyond the bound, for health checks: operators must be able to see why new connections are
# refused.
SPARE_PLACES: Final = 32

Key = TypeVar("Key", bound=Hashable)


class Place(Enum):
    """The place of a new connection. PROBE: only health checks are answered. NONE: the connection
    is closed, since all places are taken. TOO_MANY: the connection is closed, since its network has
    as many connections as are allowed, and all of them are being served.
    """

    FULL = "full"
    PROBE = "probe"
    NONE = "none"
    TOO_MANY = "too many"


class ConnectionTable(Generic[Key]):
    """All connections, by their activity.

    A connection that is being served is never ended for a new one. Other connections are ended for
    new ones, the longest idle first, so that a client that opens thousands can't keep others out.
    A network that has reached its own bound gives up one of its own connections for a new one.
    """

    def __init__(self) -> None:
        # A dictionary keeps the order of its keys, so the first key has had this activity for
        # longest.
        self._among: dict[Doing, dict[Key, None]] = {doing: {} for doing in Doing}
        self._doing: dict[Key, Doing] = {}
        self._network: dict[Key, str] = {}
        self._from: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._doing)

    def count(self, doing: Doing) -> int:
        return len(self._among[doing])

    def add(
        self, key: Key, most: int, network: str | None = None, most_from_there: int = 0
    ) -> tuple[Place, Key | None]:
        """Add a connection; `most` are allowed. Returns its place, and the connection that has to
        end for the new one, if any. A connection without a place isn't added. At most
        `most_from_there` connections may come from `network`; None: there is no such bound.
        """
        if network is not None and self._from[network] >= most_from_there:
            victim = self._to_end(network)
            if victim is None:
                return Place.TOO_MANY, None
        else:
            victim = self._to_end() if len(self) >= most else None
        if victim is not None:
            self.remove(victim)
        if len(self) >= most + SPARE_PLACES:
            return Place.NONE, None
        if network is not None:
            self._network[key] = network
            self._from[network] += 1
        self._doing[key] = Doing.IDLE
        self._among[Doing.IDLE][key] = None
        return Place.FULL if len(self) <= most else Place.PROBE, victim

    def turn(self, key: Key, doing: Doing) -> None:
        """The activity is now `doing`. A connection that has left isn't added again."""
        before = self._doing.get(key)
        if before is not None and before is not doing:
            del self._among[before][key]
            self._among[doing][key] = None
            self._doing[key] = doing

    def remove(self, key: Key) -> None:
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


# The bits of the prefix of an IPv6 network that one household or machine usually gets.
_OWN_BITS: Final = 64


def network_of(host: str) -> str | None:
    """The network of a client: its IPv4 address, or the /64 network of its IPv6 address. None: the
    client is on this machine and may be a proxy or a tunnel for many clients, or `host` is no
    address.
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


# Eight times the largest body.
ALL_BODIES_BYTES: Final = 256 << 20
_TICK_S: Final = 0.5
_RETRY_AFTER_S: Final = 5


class TrackedConnection(Hashable, Protocol):
    """A connection as the limiter sees it."""

    timeouts: ClientTimeouts

    def make_place(self) -> None:
        """End the connection, so that another one can have its place."""

    def overdue(self) -> None:
        """End the connection, since its deadline has passed."""


class ConnectionLimiter:
    """Bounds the number of connections and the bytes of their bodies, and ends connections whose
    deadline has passed.

    `refused` counts, by code, the connections and requests that were refused before they reached
    the application.
    """

    def __init__(self, capacity: Callable[[], int], from_one_place: Callable[[], int]) -> None:
        """`capacity` and `from_one_place` return how many connections may be open now: in all, and
        from one network.
        """
        self.refused: Counter[Code] = Counter()
        self.bodies = ByteBudget(ALL_BODIES_BYTES)
        # Takes the descriptors of idle connections. None: there is no next gateway.
        self.next_gateway: Callable[[int], None] | None = None
        self._capacity = capacity
        self._from_one_place = from_one_place
        self._table: ConnectionTable[TrackedConnection] = ConnectionTable()
        self._tracked: set[TrackedConnection] = set()

    def add(
        self, connection: TrackedConnection, host: str, instead_of: TrackedConnection | None = None
    ) -> Place:
        """Add a connection from the address `host`, to which `instead_of` leaves its place. A
        connection without a place is watched too, until it leaves.
        """
        if instead_of is not None:
            self.remove(instead_of)
        self._tracked.add(connection)
        place, victim = self._table.add(
            connection, self._capacity(), network_of(host), self._from_one_place()
        )
        if victim is not None:
            victim.make_place()
        return place

    def turn(self, connection: TrackedConnection, doing: Doing) -> None:
        connection.timeouts.turn(doing, asyncio.get_running_loop().time())
        self._table.turn(connection, doing)

    def count(self, doing: Doing) -> int:
        """How many connections have this activity."""
        return self._table.count(doing)

    def remove(self, connection: TrackedConnection) -> None:
        self._tracked.discard(connection)
        self._table.remove(connection)

    def watch(self, tasks: Tasks) -> None:
        """End overdue connections from now on."""
        tasks.repeat(functools.partial(self._look, tasks), "watch over connections", _TICK_S)

    async def _look(self, tasks: Tasks) -> None:
        now = asyncio.get_running_loop().time()
        for connection in [
            tracked_connection
            for tracked_connection in self._tracked
            if tracked_connection.timeouts.deadline_at <= now
        ]:
            # An error in one connection must not end the watch over the others.
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


class Handshake(asyncio.Protocol):
    """A connection until its TLS handshake is done.

    asyncio's own servers report a connection only after the handshake, so a client that opened
    thousands and sent nothing would use a descriptor for each, without a bound. Here the connection
    counts from the beginning, has a deadline for the handshake, and is ended for another connection
    before idle connections are.
    """

    def __init__(
        self,
        connection: Callable[..., asyncio.BaseProtocol],
        *,
        limiter: ConnectionLimiter,
        context: ssl.SSLContext,
        tasks: Tasks,
        **of_uvicorn: Any,
    ) -> None:
        """`connection` makes the connection that takes the place of this one once the handshake is
        done. The handshake is a task in `tasks`.
        """
        self.timeouts = ClientTimeouts(asyncio.get_running_loop().time())
        self._connection = functools.partial(
            connection, limiter=limiter, handshake=self, **of_uvicorn
        )
        self._limiter = limiter
        self._context = context
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand a copy of the socket to the event loop, which makes a transport with TLS. This
        transport must read nothing from the socket.
        """
        # uvloop's transports have the interface of asyncio.Transport, but not its base class.
        accepted = cast(asyncio.Transport, transport)
        address = get_remote_addr(accepted)
        try:
            place = self._limiter.add(self, "" if address is None else address[0])
            if place in (Place.NONE, Place.TOO_MANY):
                self._limiter.refused[self._limiter.no_place(place).code] += 1
                self._limiter.remove(self)
                return
            self._limiter.turn(self, Doing.HANDSHAKE)
            try:
                plain = socket.socket(fileno=os.dup(accepted.get_extra_info("socket").fileno()))
            except OSError:
                # There is no free descriptor.
                self._limiter.remove(self)
                return
            self._task = self._tasks.start(self._shake_hands(plain), "handshake")
        finally:
            accepted.abort()

    def make_place(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def overdue(self) -> None:
        self.make_place()

    async def _shake_hands(self, plain: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(self._connection, plain, ssl=self._context)
        except OSError:
            # The client has left, or has no TLS version in common with this server.
            pass
        finally:
            self._limiter.remove(self)


# With fewer connections an operator could not ask for the status.
_LEAST: Final = 8


def capacity(most: int, files: int, workers: int, *, passes: bool) -> int:
    """How many connections may be open: `most`, or fewer if `files` descriptors don't suffice for
    them and for `workers` workers, but never fewer than `_LEAST`. `passes`: each connection may
    need another one, to a server that its request is passed on to.
    """
    free = files - needed_files(workers)
    return max(_LEAST, min(most, free // 2 if passes else free))
