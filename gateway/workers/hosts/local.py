"""This machine as a host of ranks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import socket
from collections.abc import Callable
from importlib.metadata import version
from typing import Final

from gateway.system.lane import Lane
from gateway.system.memory import footprint
from gateway.system.memory_reading import Footprint
from gateway.workers.hosts.host import THIS_MACHINE, HostFigures, RankEnd, RankOrder
from gateway.workers.hosts.rank_log import RankLog
from gateway.workers.process import ExitStatus, WorkerProcess
from gateway.workers.records import WorkerRecords
from gateway.workers.worker_log import ProcessLog, WorkerLog
from protocol.messages import PROTOCOL_VERSION
from protocol.signals import DUMP_STACKS

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
