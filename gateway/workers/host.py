"""Hosts of ranks: the interface of all hosts, and this machine as a host.

A rank is one of the processes that compute a model together. Rank 0 is an ordinary worker beside
the gateway. The other ranks are its followers: each is started, measured and ended through the host
on which it runs.
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

from gateway.system.child import ExitStatus
from gateway.system.lane import Lane
from gateway.system.memory import footprint
from gateway.system.memory_reading import Footprint
from gateway.workers.orphans import WorkerRecords
from gateway.workers.process import ProcessOrder, WorkerProcess
from gateway.workers.worker_log import ProcessLog, RankLog, WorkerLog
from protocol.messages import PROTOCOL_VERSION
from protocol.process import DUMP_STACKS

# The name of the gateway's own host.
THIS_MACHINE: Final = "this machine"


class RankOrder(ProcessOrder, frozen=True, kw_only=True):
    """An order to start a rank. `needed_bytes`, an estimate, are reserved on the host."""

    rank: int
    needed_bytes: int = 0


class RankEnd(Struct, frozen=True):
    """How the process of a rank ended. `status` is None if the host is out of reach; then `reason`
    says so. With `by_host` the host ended the rank by itself.
    """

    status: ExitStatus | None
    reason: str
    by_host: bool = False


class HostFigures(Struct, frozen=True):
    """The memory for ranks on a host, in bytes. `free_bytes` of the budget are neither held by
    ranks nor reserved for them.
    """

    budget_bytes: int
    free_bytes: int


class RankProcess(Protocol):
    """The process of a rank. Only `ended` waits for the end of the process."""

    @property
    def pid(self) -> int:
        """The process id on the rank's host."""

    async def footprint(self) -> Footprint:
        """Raises: FootprintError; OSError if no answer comes in time."""

    async def reserve(self, wanted_bytes: int) -> int:
        """Reserve `wanted_bytes` for the rank on its host. Returns the bytes that are reserved from
        now on: fewer than wanted if the host has no room for more. Raises: OSError.
        """

    async def dump(self) -> None:
        """Have the process print its stacks; continue a stopped process. Raises: OSError."""

    async def end(self) -> None:
        """Send SIGTERM: the process gives its memory back, and ends. Raises: OSError."""

    async def kill(self) -> None:
        """Send SIGKILL. Raises: OSError."""

    async def ended(self) -> RankEnd:
        """Wait for the end of the process. May be called any number of times. The wait always ends:
        a host that is out of reach ends its ranks by itself, and this returns once the host must
        have done so.
        """


class RankHost(Protocol):
    """A machine that ranks run on."""

    @property
    def name(self) -> str:
        """The host's name in the configuration."""

    async def figures(self) -> HostFigures:
        """Raises: OSError: the host can't be asked; the text says why."""

    async def address(self) -> str:
        """An IP address at which this machine reaches the host. Raises: OSError."""

    async def free_ports(self, count: int) -> tuple[int, ...]:
        """TCP ports of the host that are free now. Raises: OSError."""

    async def start(self, order: RankOrder, log: WorkerLog) -> RankProcess:
        """Start a rank, which prints to `log`. After an error no process is left, at the latest
        after a short time.

        Raises:
            NoRoomError: the host lacks memory for the rank now.
            OSError: the rank can't be started.
        """


LOOPBACK: Final = "127.0.0.1"
# The longest wait for a reading of one process: a reading can hang like the process itself.
_READING_S: Final = 5.0


class LocalRank:
    """A rank that is a child of this process."""

    def __init__(self, order: RankOrder, log: ProcessLog, records: WorkerRecords) -> None:
        """Start the rank. Raises: OSError: there is no process."""
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

    async def reserve(self, wanted_bytes: int) -> int:
        # The memory of this machine is in the gateway's account already.
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
    """This machine as a host. `figures` are from this gateway's account of memory."""

    name = THIS_MACHINE

    def __init__(self, records: WorkerRecords, room_bytes: Callable[[], tuple[int, int]]) -> None:
        """`room_bytes` returns this machine's budget, and the free part of the budget."""
        self._records = records
        self._room_bytes = room_bytes

    async def figures(self) -> HostFigures:
        budget_bytes, free_bytes = self._room_bytes()
        return HostFigures(budget_bytes, free_bytes)

    async def address(self) -> str:
        return LOOPBACK

    async def free_ports(self, count: int) -> tuple[int, ...]:
        return free_ports(count)

    async def start(self, order: RankOrder, log: WorkerLog) -> LocalRank:
        return LocalRank(order, RankLog(log, order.rank), self._records)


def own_address(towards: str) -> str:
    """The address of this machine from which packets reach `towards`, an IP address of another
    machine. Raises: OSError: there is no route.
    """
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        # This sends nothing: `connect` on a datagram socket only chooses a route.
        way.connect((towards, 9))
        return str(way.getsockname()[0])


def versions() -> dict[str, str]:
    """The versions that must be the same on all hosts of a model."""
    return {"protocol": str(PROTOCOL_VERSION), "mlx": version("mlx"), "mlx-lm": version("mlx-lm")}


def free_ports(count: int) -> tuple[int, ...]:
    """TCP ports that are free now, on all interfaces. Raises: OSError: there are too few."""
    with contextlib.ExitStack() as stack:
        # All sockets are open at the same time, so that no port comes twice.
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("", 0))
        return tuple(listener.getsockname()[1] for listener in sockets)
