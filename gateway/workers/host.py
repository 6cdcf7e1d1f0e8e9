"""Hosts of ranks: the protocol of any host, and this machine as one.

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

# The name of the gateway's own host.
THIS_MACHINE: Final = "this machine"


class RankOrder(ProcessOrder, frozen=True, kw_only=True):
    """A rank that a host is to start, and that it keeps `needed_bytes` for, by the estimate."""

    rank: int
    needed_bytes: int = 0


class RankEnd(Struct, frozen=True):
    """How a rank's process ended. `status` None: it isn't known, as the host is out of reach, and
    `reason` says so. `by_host`: its host ended it without an order. `log_tail` are its last lines,
    where the gateway hasn't got them already.
    """

    status: ExitStatus | None
    reason: str
    by_host: bool = False
    log_tail: tuple[str, ...] = ()


class HostFigures(Struct, frozen=True):
    """The memory for ranks on a host, in bytes: the budget, and the part that is neither held nor
    promised. `versions` must agree on all hosts of a model; they are by the name of the
    distribution, and "protocol".
    """

    budget_bytes: int
    free_bytes: int
    versions: dict[str, str]


class RankProcess(Protocol):
    """A rank that was started. Only `ended` waits for its end."""

    @property
    def pid(self) -> int:
        """On its host."""

    async def footprint(self) -> Footprint:
        """Raises: FootprintError; OSError if no answer comes in time."""

    async def keep(self, wanted_bytes: int) -> int:
        """Have its host keep more for it. Returns the bytes that it keeps from now on: fewer than
        wanted if there aren't as many. Raises: OSError.
        """

    async def dump(self) -> None:
        """Have it print its stacks, and go on if it was stopped. Raises: OSError."""

    async def end(self) -> None:
        """SIGTERM: it gives back what it holds. Raises: OSError."""

    async def kill(self) -> None:
        """SIGKILL. Raises: OSError."""

    async def ended(self) -> RankEnd:
        """Wait for its end, any number of times. It always returns: a host out of reach ends its
        ranks by itself, and this returns once it must have done so.
        """


class RankHost(Protocol):
    """A machine that ranks run on."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""

    async def figures(self) -> HostFigures:
        """Raises: OSError: the host can't be asked; the text says why."""

    async def address(self) -> str:
        """An IP address at which it is reached from here. Raises: OSError."""

    async def free_ports(self, count: int) -> tuple[int, ...]:
        """TCP ports that are free now. Raises: OSError."""

    async def start(self, order: RankOrder) -> RankProcess:
        """Start a rank.

        Raises:
            NoRoomError: the host lacks memory for it now.
            OSError: it can't be started. In either case there is no process, or soon none.
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
        # The account of this gateway has it already.
        return wanted_bytes

    async def dump(self) -> None:
        self._process.send_signal(DUMP_STACKS)
        # A stopped process could not dump its stacks.
        self._process.send_signal(signal.SIGCONT)

    async def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    async def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    async def ended(self) -> RankEnd:
        return await asyncio.shield(self._end)

    def _on_exit_in_thread(self, status: ExitStatus) -> None:
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end.set_result, RankEnd(status, str(status)))


class LocalHost:
    """This machine. Its `figures` are those of this gateway's account."""

    name = THIS_MACHINE

    def __init__(
        self, log: WorkerLog, records: WorkerRecords, room_bytes: Callable[[], tuple[int, int]]
    ) -> None:
        """Ranks print to `log`. `room_bytes` returns the budget, and the free part of it."""
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
    """The address of this machine from which an IP address elsewhere is reached. Raises: OSError:
    there is no route.
    """
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        # Nothing is sent: a datagram's socket only takes its route.
        way.connect((towards, 9))
        return str(way.getsockname()[0])


def versions() -> dict[str, str]:
    """The versions that have to agree on all hosts of a model."""
    return {"protocol": str(PROTOCOL_VERSION), "mlx": version("mlx"), "mlx-lm": version("mlx-lm")}


def free_ports(count: int) -> tuple[int, ...]:
    """TCP ports that are free now, on all interfaces. Raises: OSError: there are none."""
    with contextlib.ExitStack() as stack:
        # All open at once, so that none comes twice.
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return tuple(each.getsockname()[1] for each in sockets)
