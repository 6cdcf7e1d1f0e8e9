"""Other machines as hosts of ranks, which this gateway reaches by ssh.

Each rank has an ssh session of its own. Another session, which has no rank, stays open for
questions about the host. The gateway keeps the account of the memory that its ranks have there.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from gateway.config.model_settings import LOCAL, HostSettings, RankPlace
from gateway.memory.execution import NoRoomError
from gateway.system.lane import Lane
from gateway.system.memory_reading import Footprint, FootprintError
from gateway.system.notation import format_size
from gateway.system.processes import ProcessIdentity
from gateway.system.tasks import Tasks
from gateway.workers.host import HostFigures, RankEnd, RankOrder
from gateway.workers.lifeline import gone_at
from gateway.workers.ssh_messages import (
    FindPorts,
    FindProcesses,
    FootprintReading,
    ForGateway,
    ForRemote,
    FreePorts,
    HostReading,
    OrderDone,
    RankEnded,
    RankLines,
    RankStarted,
    ReadFootprint,
    ReadHost,
    RemoteHello,
    RunningProcesses,
    SignalRank,
    StartRank,
)
from gateway.workers.ssh_session import RefusedError, SshSession
from gateway.workers.worker_log import RankLog, WorkerLog

logger = logging.getLogger(__name__)

A = TypeVar("A", bound=ForGateway)

# The longest wait for a reading of a host. The first one asks the device in a process of its own.
_HOST_S: Final = 20.0
_ANSWER_S: Final = 5.0
_START_S: Final = 15.0
_SIGNAL_S: Final = 3.0
# The remote program waits less long for a footprint.
_FOOTPRINT_S: Final = 8.0
_READING_EVERY_S: Final = 10.0
# While a host may have a rank that this gateway can't reach, the host is asked this often.
_LOOK_S: Final = 1.0
_MOST_WRITES: Final = 64


class HostReservations:
    """The budget of a host, and the reserved bytes of each rank there. A rank takes up its
    reservation, or its footprint if that is larger.
    """

    def __init__(self) -> None:
        self.budget_bytes = 0
        self._reserved: dict[int, int] = {}
        self._held: dict[int, int] = {}

    @property
    def ranks(self) -> int:
        return len(self._reserved)

    @property
    def taken_bytes(self) -> int:
        return sum(max(size, self._held[rank]) for rank, size in self._reserved.items())

    @property
    def held_bytes(self) -> int:
        """The footprints of all ranks, by the last readings."""
        return sum(self._held.values())

    @property
    def free_bytes(self) -> int:
        return max(0, self.budget_bytes - self.taken_bytes)

    def admit(self, rank: int, needed_bytes: int) -> str | None:
        """Reserve `needed_bytes` for a rank and return None, or return why they aren't free."""
        if needed_bytes <= self.free_bytes:
            self._reserved[rank] = needed_bytes
            self._held[rank] = 0
            return None
        others = f"; other ranks have {format_size(self.taken_bytes)}" if self._reserved else ""
        return (
            f"it needs {format_size(needed_bytes)}, and {format_size(self.free_bytes)} of the "
            f"budget of {format_size(self.budget_bytes)} is free{others}"
        )

    def raise_to(self, rank: int, wanted_bytes: int) -> int:
        """Raise the reservation of a rank to `wanted_bytes`, or as far as the budget allows.
        Returns the reserved bytes.
        """
        possible_bytes = self.free_bytes + self.most_bytes(rank)
        self._reserved[rank] = max(self._reserved[rank], min(wanted_bytes, possible_bytes))
        return self._reserved[rank]

    def measure(self, rank: int, held_bytes: int) -> None:
        """Record the footprint of a rank. The rank may have ended by now."""
        if rank in self._held:
            self._held[rank] = held_bytes

    def most_bytes(self, rank: int) -> int:
        """The bytes that a rank may hold, as far as they are known."""
        return max(self._reserved.get(rank, 0), self._held.get(rank, 0))

    def release(self, rank: int) -> None:
        self._reserved.pop(rank, None)
        self._held.pop(rank, None)


class RemoteRank:
    """A rank that `bulkhead remote` has started, or may have started. `pid` is 0 until the pid is
    known.
    """

    def __init__(self, host: SshHost, number: int, log: RankLog) -> None:
        self.number = number
        self.pid = 0
        self._host = host
        self._log = log
        self._writer = Lane(f"log of {host.name}")
        self._writes = 0
        self._session: SshSession | None = None
        self._process: ProcessIdentity | None = None
        self._failure: str | None = None
        self._end: asyncio.Future[RankEnd] = asyncio.get_running_loop().create_future()
        self._tasks = Tasks(f"rank on {host.name}")

    @property
    def was_opened(self) -> bool:
        """Whether a session was opened, so that the rank may have been started."""
        return self._session is not None

    async def start(self, order: RankOrder, settings: HostSettings) -> None:
        """Open a session and start the rank. Without an answer the rank counts as started.

        Raises: OSError: there is no process.
        """
        self._session = session = await SshSession.open(self._host.name, settings, self._receive)
        self._tasks.start(self._follow(session), "follow")
        try:
            started = await session.ask(StartRank(order), RankStarted, _START_S)
            self._process = started.process
            self.pid = started.process.pid
        except RefusedError:
            self._finish(RankEnd(None, "it was not started"))
            raise
        except BaseException as error:
            reason = str(error) or "nobody waited for it"
            self._failure = f"{self._host.name} didn't say whether it was started: {reason}"
            session.end(reason)
            if not isinstance(error, OSError):
                raise

    async def footprint(self) -> Footprint:
        """Raises: FootprintError, OSError."""
        try:
            reading = await self._ask(ReadFootprint(), FootprintReading, _FOOTPRINT_S)
        except RefusedError as error:
            raise FootprintError(f"rank {self.pid}: {error}") from error
        self._host.memory.measure(self.number, reading.footprint.current_bytes)
        return reading.footprint

    async def reserve(self, wanted_bytes: int) -> int:
        """Raises: OSError: the rank has ended, or its host is out of reach."""
        if self._session is None or self._session.ended.is_set() or self._end.done():
            raise ConnectionError(f"{self._host.name} is out of reach")
        reserved_bytes = self._host.memory.raise_to(self.number, wanted_bytes)
        size = format_size(reserved_bytes)
        logger.info("Rank %d on %s may hold %s now", self.pid, self._host.name, size)
        return reserved_bytes

    async def dump(self) -> None:
        await self._ask(SignalRank("dump"), OrderDone, _SIGNAL_S)

    async def end(self) -> None:
        await self._signal(SignalRank("end"))

    async def kill(self) -> None:
        await self._signal(SignalRank("kill"))

    async def ended(self) -> RankEnd:
        return await asyncio.shield(self._end)

    async def close(self) -> None:
        """Close the session, which ends the rank if it still runs."""
        if self._session is not None:
            await self._session.close()
        await self._tasks.cancel_all()

    async def _signal(self, request: SignalRank) -> None:
        try:
            await self._ask(request, OrderDone, _SIGNAL_S)
        except RefusedError:
            return  # The rank has ended, and the message that says so is on its way.
        except OSError as error:
            if self._end.done():
                return
            if self._session is not None:
                # The end of the pipe ends the rank, too.
                self._session.end(str(error))
            raise

    async def _ask(self, request: ForRemote, kind: type[A], deadline_s: float) -> A:
        if self._session is None:
            raise ConnectionError(f"{self._host.name} is out of reach")
        return await self._session.ask(request, kind, deadline_s)

    def _receive(self, message: ForGateway) -> None:
        match message:
            case RankLines(lines, lost):
                if lost:
                    logger.warning("%d lines of rank %d are lost", lost, self.pid)
                if self._writes < _MOST_WRITES:
                    self._writes += 1
                    self._writer.soon(functools.partial(self._write, lines))
            case RankEnded(end):
                self._finish(end)
            case _:
                pass

    def _write(self, lines: tuple[str, ...]) -> None:
        """Write printed lines to the rank's log. Runs in the lane, as a disk may be slow."""
        self._writes -= 1
        for line in lines:
            self._log.add(line)

    async def _follow(self, session: SshSession) -> None:
        """Close the session after the rank's end. If the session ends first, wait until the rank
        must have ended.
        """
        over = asyncio.ensure_future(session.ended.wait())
        waits: set[asyncio.Future[Any]] = {over, self._end}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if not self._end.done():
            logger.warning("Rank %d on %s: %s", self.pid, self._host.name, session.reason)
            await self._until_gone(session)
            self._finish(RankEnd(None, self._failure or session.reason))
        await session.close()

    async def _until_gone(self, session: SshSession) -> None:
        """Wait until the host says that the rank has ended, or until it must have ended."""
        loop = asyncio.get_running_loop()
        most_bytes = self._host.memory.most_bytes(self.number)
        gone_by = gone_at(loop.time(), session.last_pong_at, most_bytes)
        while (left_s := gone_by - loop.time()) > 0:
            if self._process is not None and await self._host.has_ended(self._process, left_s):
                return
            await asyncio.sleep(min(_LOOK_S, max(0.0, gone_by - loop.time())))

    def _finish(self, end: RankEnd) -> None:
        self._host.memory.release(self.number)
        if not self._end.done():
            self._end.set_result(end)


class SshHost:
    """Another machine as a host. `reading` and `hello` are its last answers. `trouble` says why
    there is no answer; None: there is one.
    """

    def __init__(self, name: str, settings: HostSettings) -> None:
        self.name = name
        self.settings = settings
        self.memory = HostReservations()
        self.reading: HostReading | None = None
        self.hello: RemoteHello | None = None
        self.trouble: str | None = "it was not asked yet"
        self._session: SshSession | None = None
        self._opening = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._ranks: set[RemoteRank] = set()
        self._tasks = Tasks(name)

    async def read(self) -> HostReading:
        """Ask the host for its memory. Raises: OSError."""
        try:
            reading = await self._ask(ReadHost(self.settings.budget), HostReading, _HOST_S)
        except OSError as error:
            self.reading = None
            if self.trouble != str(error):
                logger.warning("Host %s: %s", self.name, error)
            self.trouble = str(error)
            raise
        self.reading, self.trouble = reading, None
        self.memory.budget_bytes = reading.budget_bytes
        return reading

    async def figures(self) -> HostFigures:
        await self.read()
        return HostFigures(self.memory.budget_bytes, self.memory.free_bytes)

    async def address(self) -> str:
        """Raises: OSError: the host can't be reached, or sshd doesn't name its address."""
        hello = (await self._opened()).hello
        if hello.address is None:
            raise OSError(f"{self.name} has no SSH_CONNECTION: give its ranks interfaces")
        return hello.address

    async def free_ports(self, count: int) -> tuple[int, ...]:
        return (await self._ask(FindPorts(count), FreePorts, _ANSWER_S)).ports

    async def start(self, order: RankOrder, log: WorkerLog) -> RemoteRank:
        """Start a rank. If the host doesn't answer, the rank counts as started; it ends once no
        process can be left.

        Raises:
            NoRoomError: the host lacks memory for the rank.
            OSError: there is no process.
        """
        if order.python is not None:
            raise OSError(
                f"{self.name}: ranks on other hosts run in the environment of `bulkhead` there; "
                "the model's python can't be had."
            )
        if self.reading is None:
            await self.read()
        rank = RemoteRank(self, next(self._numbers), RankLog(log, order.rank))
        if (reason := self.memory.admit(rank.number, order.needed_bytes)) is not None:
            raise NoRoomError(f"{self.name}: there is no room for {order.name}: {reason}")
        self._ranks.add(rank)
        try:
            await rank.start(order, self.settings)
        finally:
            if rank.was_opened:
                self._tasks.start(self._forget(rank), "rank")
            else:
                self.memory.release(rank.number)
                self._ranks.discard(rank)
        return rank

    async def has_ended(self, process: ProcessIdentity, deadline_s: float) -> bool:
        """Whether the host says that a process has ended. False if the host doesn't answer."""
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._ask(FindProcesses((process,)), RunningProcesses, _ANSWER_S)
        except OSError:
            return False
        return not answer.processes

    def watch(self) -> None:
        """Read the host's memory again and again."""
        self._tasks.repeat(self._read_again, "reading", _READING_EVERY_S)

    async def close(self) -> None:
        """Close all sessions. The remote programs end the ranks that are left."""
        await self._tasks.cancel_all()
        await asyncio.gather(*(rank.close() for rank in self._ranks))
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _read_again(self) -> None:
        try:
            await self.read()
        except OSError:
            return  # `trouble` says why.

    async def _forget(self, rank: RemoteRank) -> None:
        await rank.ended()
        self._ranks.discard(rank)

    async def _ask(self, request: ForRemote, kind: type[A], deadline_s: float) -> A:
        session = await self._opened()
        try:
            return await session.ask(request, kind, deadline_s)
        except TimeoutError as error:
            session.end(str(error))
            raise

    async def _opened(self) -> SshSession:
        async with self._opening:
            if self._session is None or self._session.ended.is_set():
                if self._session is not None:
                    await self._session.close()
                    self._session = None
                self._session = await SshSession.open(self.name, self.settings, lambda _: None)
                self.hello = self._session.hello
            return self._session


class Hosts:
    """The machines of the configuration, by their names."""

    def __init__(self, configured: Mapping[str, HostSettings]) -> None:
        self.by_name = {name: SshHost(name, settings) for name, settings in configured.items()}

    def host(self, name: str) -> SshHost:
        """Raises: OSError: this gateway has no host of this name."""
        if name not in self.by_name:
            raise OSError(f"The gateway knows no host {name}: it takes new ones at its next start")
        return self.by_name[name]

    async def check_room(self, places: Sequence[RankPlace], rank_bytes: int) -> None:
        """Check that each other host has `rank_bytes` of free memory for each of its ranks.

        Raises:
            NoRoomError: a host lacks the memory.
            OSError: a host can't be asked, or has other versions.
        """
        wanted = Counter(place.host for place in places if place.host != LOCAL)
        for name, ranks in wanted.items():
            figures = await self.host(name).figures()
            if figures.free_bytes < ranks * rank_bytes:
                raise NoRoomError(
                    f"on {name} it needs {format_size(ranks * rank_bytes)}, and "
                    f"{format_size(figures.free_bytes)} of the budget of "
                    f"{format_size(figures.budget_bytes)} there is free"
                )

    def start(self) -> None:
        for host in self.by_name.values():
            host.watch()

    async def close(self) -> None:
        """Close all sessions. To be called when no rank is left."""
        await asyncio.gather(*(host.close() for host in self.by_name.values()))
