"""A machine as a host of ranks: what supervision asks of any host, and this machine as one.

A rank is one process of a model that several processes compute together. Rank 0 is an ordinary
worker beside the gateway. The other ranks follow rank 0; each is started, measured and ended
through the host that it is on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import socket
from collections.abc import Callable
from importlib.metadata import version
from typing import Final, Protocol

from msgspec import Struct

from gateway.system.lane import Lane
from gateway.system.memory import footprint
from gateway.system.memory_reading import Footprint
from gateway.workers.leftovers import WorkerRecords
from gateway.workers.process import ExitStatus, ProcessOrder, WorkerProcess
from gateway.workers.worker_log import ProcessLog, RankLog, WorkerLog
from protocol.messages import PROTOCOL_VERSION
from protocol.process import DUMP_STACKS

# The name of the gateway's own.
THIS_MACHINE: Final = "this machine"


class RankOrder(ProcessOrder, frozen=True, kw_only=True):
    """What a host is to start. `needed_bytes` is what the host keeps for it, by the estimate of
    what this rank takes there.
    """

    rank: int
    needed_bytes: int = 0


class RankEnd(Struct, frozen=True):
    """How a rank's process ended. `status` None: nobody could see it, as its host is out of reach,
    and `reason` says so. `by_host`: its host ended it, for a reason of its own. `log_tail` are its
    last lines, where the gateway has not got them already.
    """

    status: ExitStatus | None
    reason: str
    by_host: bool = False
    log_tail: tuple[str, ...] = ()


class HostFigures(Struct, frozen=True):
    """What there is for ranks on a host, in bytes: what all of them may hold together, and how much
    of that nobody holds or has been promised. `versions` are those that must agree for ranks to
    understand each other, by the name of the distribution, and "protocol".
    """

    budget_bytes: int
    free_bytes: int
    versions: dict[str, str]


class RankProcess(Protocol):
    """A rank that was started. Nothing here waits for its end but `ended`."""

    @property
    def pid(self) -> int:
        """On its host."""

    async def footprint(self) -> Footprint:
        """Raises: FootprintError; OSError if no answer comes in time."""

    async def keep(self, wanted_bytes: int) -> int:
        """Have its host keep more for it: what it keeps from now on, in bytes, which is less where
        there isn't so much. Raises: OSError.
        """

    async def dump(self) -> None:
        """Have it print its stacks, and go on if it was stopped. Raises: OSError."""

    async def end(self) -> None:
        """SIGTERM: it gives back what it holds. Raises: OSError."""

    async def kill(self) -> None:
        """SIGKILL. Raises: OSError."""

    async def ended(self) -> RankEnd:
        """Wait for its end, however long it takes; any number of times. Always answers: a host out
        of reach ends its ranks itself, and this answers once it must have done so.
        """


class RankHost(Protocol):
    """A machine."""

    @property
    def name(self) -> str:
        """As the configuration has it, for people."""

    async def figures(self) -> HostFigures:
        """Raises: OSError if the host can't be asked, with what is wrong."""

    async def address(self) -> str:
        """An IP address at which it is reached from here. Raises: OSError."""

    async def free_ports(self, count: int) -> tuple[int, ...]:
        """TCP ports that nobody listens on now. Raises: OSError."""

    async def start(self, order: RankOrder) -> RankProcess:
        """Start a rank.

        Raises:
            NoRoomError: the host lacks memory for it now.
            OSError: it can't be started. In either case there is no process, or none for long.
        """


LOOPBACK: Final = "127.0.0.1"
# For a reading of one process: it can hang like the process itself.
_READING_S: Final = 5.0


class LocalRank:
    """A rank that is a child of this process."""

    def __init__(self, order: RankOrder, log: ProcessLog, records: WorkerRecords) -> None:
        """Raises: OSError: it can't be started."""
        self._loop = asyncio.get_running_loop()
        self._lane = Lane(f"rank-{order.incarnation}-{order.rank}")
        self._end: asyncio.Future[RankEnd] = self._loop.create_future()
        self._process = WorkerProcess(order, log, records, self._on_exit_in_thread)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def footprint(self) -> Footprint:
        return await self._lane.run(
            functools.partial(footprint, self.pid), _READING_S, f"the footprint of {self.pid}"
        )

    async def keep(self, wanted_bytes: int) -> int:
        # The caller's own account has it.
        return wanted_bytes

    async def dump(self) -> None:
        self._process.send_signal(DUMP_STACKS)
        # One that was stopped couldn't.
        self._process.send_signal(signal.SIGCONT)

    async def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    async def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    async def ended(self) -> RankEnd:
        return await asyncio.shield(self._end)

    def _on_exit_in_thread(self, status: ExitStatus) -> None:
        # The loop may be closed by now, and nobody waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end.set_result, RankEnd(status, str(status)))


class LocalHost:
    """`figures` are the caller's, who admits memory here anyway."""

    name = THIS_MACHINE

    def __init__(
        self, log: WorkerLog, records: WorkerRecords, room_bytes: Callable[[], tuple[int, int]]
    ) -> None:
        """What ranks print goes to `log`. `room_bytes` tells the budget, and what is free of it."""
        self._log = log
        self._records = records
        self._room_bytes = room_bytes

    async def figures(self) -> HostFigures:
        budget_bytes, free_bytes = self._room_bytes()
        return HostFigures(budget_bytes, free_bytes, versions())

    async def address(self) -> str:
        return LOOPBACK

    async def free_ports(self, count: int) -> tuple[int, ...]:
        return free_ports(count)

    async def start(self, order: RankOrder) -> LocalRank:
        return LocalRank(order, RankLog(self._log, order.rank), self._records)


def own_address(towards: str) -> str:
    """The one of this machine that an IP address elsewhere is reached from. Raises: OSError: there
    is no way to it.
    """
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        # Nothing is sent: a datagram's socket only takes its route.
        way.connect((towards, 9))
        return str(way.getsockname()[0])


def versions() -> dict[str, str]:
    """Of what has to agree on all hosts of a model."""
    return {"protocol": str(PROTOCOL_VERSION), "mlx": version("mlx"), "mlx-lm": version("mlx-lm")}


def free_ports(count: int) -> tuple[int, ...]:
    """TCP ports that nobody listens on now, on any interface. Raises: OSError: there are none."""
    with contextlib.ExitStack() as stack:
        # All open at once, so that none comes twice.
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return tuple(each.getsockname()[1] for each in sockets)
