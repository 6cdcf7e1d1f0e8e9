"""`bulkhead remote`: a rank on this machine, for a gateway elsewhere that has started this program
by ssh.

1. It takes standard input and output for messages. From then on a print goes to standard error.
2. It ends the ranks that a killed program of this kind has left.
3. It says hello, sends pings, and answers requests. One of them may start a rank.
4. It sends the lines that the rank prints, and how the rank has ended.
5. At the end of the pipe, after a silence of the gateway, or after a signal it ends the rank, and
   then itself.

The rank is a child of this program, so that a stopped rank can be killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import queue
import select
import signal
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from gateway import VERSION
from gateway.config.settings import MemorySettings
from gateway.memory.fitting import budget_bytes
from gateway.system.clock import until_set
from gateway.system.lane import Lane, start_thread
from gateway.system.memory import host_memory
from gateway.system.memory_reading import FootprintError
from gateway.system.processes import (
    ProcessGoneError,
    ProcessIdentity,
    alive,
    identify,
)
from gateway.system.state_dir import default_state_dir
from gateway.system.state_file import make_folder, read_state, write_state
from gateway.system.tasks import Tasks
from gateway.workers import shutdown_steps
from gateway.workers.host import LocalRank, RankEnd, RankOrder, free_ports, versions
from gateway.workers.lifeline import PING_S, SILENCE_S, Lifeline
from gateway.workers.orphans import WorkerRecords, end_orphans
from gateway.workers.shutdown_steps import ShutdownStep
from gateway.workers.ssh_messages import (
    API,
    PREAMBLE,
    FindPorts,
    FindProcesses,
    FootprintReading,
    ForGateway,
    ForRemote,
    FrameError,
    FrameReader,
    FreePorts,
    HostReading,
    NumberedForGateway,
    NumberedForRemote,
    OrderDone,
    Ping,
    Pong,
    RankEnded,
    RankLines,
    RankStarted,
    ReadFootprint,
    ReadHost,
    RemoteHello,
    RunningProcesses,
    SignalRank,
    StartRank,
    StartRefused,
    decode_for_remote,
    encode,
)

logger = logging.getLogger(__name__)

_HOST_S: Final = 18.0
_READ_BYTES: Final = 1 << 16
_MOST_FRAMES: Final = 256
_MOST_LINES: Final = 500
# Lines of a burst go with one message.
_GATHER_S: Final = 0.05
_FLUSH_S: Final = 1.0
# The fields of SSH_CONNECTION: the client's address and port, and the server's.
_SERVER_ADDRESS: Final = 2


class MessagePipe:
    """Standard input and output as a pipe for messages. A thread reads it and another writes it, so
    that a link that takes no bytes stops nobody.
    """

    def __init__(self) -> None:
        self._input, self._output = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        # A call in the queue is made once all messages before it are written.
        self._frames: queue.Queue[bytes | Callable[[], object]] = queue.Queue(_MOST_FRAMES)

    def start(self, receive: Callable[[NumberedForRemote], None], end: Callable[[], None]) -> None:
        """Read and write from now on. `receive` and `end` are called from threads."""
        self.send_bytes(PREAMBLE)
        start_thread(functools.partial(self._read, receive, end), "pipe-read")
        start_thread(functools.partial(self._write, end), "pipe-write")

    @property
    def is_clogged(self) -> bool:
        """Whether the link takes no bytes at present."""
        return self._frames.qsize() > _MOST_FRAMES // 2

    def send(self, message: ForGateway, number: int = 0) -> None:
        self.send_bytes(encode(NumberedForGateway(number, message)))

    def send_bytes(self, frame: bytes) -> None:
        # A link that is full of messages has been silent for longer than `SILENCE_S`.
        with contextlib.suppress(queue.Full):
            self._frames.put_nowait(frame)

    async def flush(self) -> None:
        """Wait until all messages are written, for a second at most."""
        written = asyncio.Event()
        loop = asyncio.get_running_loop()
        with contextlib.suppress(queue.Full):
            self._frames.put_nowait(lambda: loop.call_soon_threadsafe(written.set))
            await until_set(written, _FLUSH_S)

    def _read(self, receive: Callable[[NumberedForRemote], None], end: Callable[[], None]) -> None:
        frames = FrameReader(after_preamble=False)
        with contextlib.suppress(OSError, FrameError, msgspec.MsgspecError):
            while data := os.read(self._input, _READ_BYTES):
                for content in frames.feed(data):
                    receive(decode_for_remote(content))
        end()

    def _write(self, end: Callable[[], None]) -> None:
        # A loop that is closed waits for no message.
        with contextlib.suppress(OSError, RuntimeError):
            while True:
                if callable(frame := self._frames.get()):
                    frame()
                    continue
                rest = memoryview(frame)
                while rest:
                    # sshd may have made the pipe non-blocking.
                    select.select([], [self._output], [])
                    rest = rest[os.write(self._output, rest) :]
        end()


class LineQueue:
    """The lines that the rank prints, until they are sent. A thread adds lines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._lost = 0

    def mark_start(self, pid: int, incarnation: int) -> None:
        """Do nothing: rank 0 has begun the model's log."""

    def add(self, line: str) -> None:
        with self._lock:
            self._lost += len(self._lines) == _MOST_LINES
            self._lines.append(line)

    def drain(self) -> RankLines | None:
        """Remove all lines and return them; None: there are none."""
        with self._lock:
            if not self._lines:
                return None
            lines = RankLines(tuple(self._lines), self._lost)
            self._lines.clear()
            self._lost = 0
            return lines


class Remote:
    """The program. Everything but reading and writing the pipe runs on the event loop."""

    def __init__(self, pipe: MessagePipe, folder: Path) -> None:
        """`folder` has the records of ranks, which a next program of this kind may have to end."""
        self._pipe = pipe
        self._records = RankRecords(folder)
        self._loop = asyncio.get_running_loop()
        self._lines = LineQueue()
        self._rank: LocalRank | None = None
        self._following: asyncio.Task[None] | None = None
        self._footprint_bytes = 0
        self._budgets: dict[int | str, int] = {}
        # Why the rank must end, once it must.
        self._reason = ""
        self._over = asyncio.Event()
        self._machine = Lane("machine")
        self._sweeper = Lane("end_orphans")
        self._lifeline = Lifeline(self._loop.time())
        self._tasks = Tasks("remote")

    async def serve(self) -> None:
        """Serve the gateway until the pipe's end, a silence or a signal. Then end the rank."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            reason = f"its `bulkhead remote` got {number.name}"
            self._loop.add_signal_handler(number, self._end, reason)
        self._sweeper.soon(self._records.end_orphans)
        end = functools.partial(self._from_thread, self._end, "its connection to the gateway ended")
        self._pipe.start(functools.partial(self._from_thread, self._receive), end)
        connection = os.environ.get("SSH_CONNECTION", "").split()
        address = connection[_SERVER_ADDRESS] if len(connection) > _SERVER_ADDRESS else None
        self._pipe.send(RemoteHello(API, VERSION, versions(), address))
        self._tasks.repeat(self._ping, "ping", PING_S)
        self._tasks.repeat(self._send_lines, "lines", _GATHER_S)
        await self._over.wait()
        if self._rank is not None and self._following is not None:
            await self._end_rank(self._rank, self._following)
        await self._pipe.flush()
        await self._tasks.cancel_all()
        self._records.close()

    def _from_thread(self, call: Callable[..., None], *arguments: object) -> None:
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)

    def _end(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._over.set()

    async def _ping(self) -> None:
        now = self._loop.time()
        if self._lifeline.is_cut(now):
            self._end(f"its gateway has not been heard for {SILENCE_S:g} s")
        self._pipe.send(Ping(self._lifeline.ping(now)))

    def _receive(self, numbered: NumberedForRemote) -> None:
        match numbered.message:
            case Pong(number):
                self._lifeline.pong(number)
            case request:
                self._tasks.start(self._answer(numbered.number, request), "answer")

    async def _answer(self, number: int, request: ForRemote) -> None:
        try:
            answer = await self._do(request)
        except (OSError, FootprintError, ProcessGoneError) as error:
            answer = StartRefused(str(error))
        self._pipe.send(answer, number)

    async def _do(self, request: ForRemote) -> ForGateway:
        """Raises: OSError, FootprintError, ProcessGoneError."""
        match request:
            case ReadHost(budget):
                return await self._machine.run(
                    functools.partial(self._read_host, budget), _HOST_S, "the machine's memory"
                )
            case FindPorts(count):
                return FreePorts(free_ports(count))
            case FindProcesses(processes):
                return RunningProcesses(tuple(process for process in processes if alive(process)))
            case StartRank(order):
                return await self._start(order)
            case ReadFootprint():
                footprint = await self._running().footprint()
                self._footprint_bytes = footprint.current_bytes
                return FootprintReading(footprint)
            case SignalRank(name):
                rank = self._running()
                await {"dump": rank.dump, "end": rank.end, "kill": rank.kill}[name]()
                return OrderDone()
            case Pong():
                raise AssertionError("a pong is no request")

    def _running(self) -> LocalRank:
        """Raises: OSError: there is no rank."""
        if self._rank is None:
            raise OSError("there is no rank: it has ended")
        return self._rank

    def _read_host(self, budget: int | str) -> HostReading:
        if budget not in self._budgets:
            self._budgets[budget] = budget_bytes(MemorySettings(budget=budget))
        memory = host_memory()
        return HostReading(
            budget_bytes=self._budgets[budget],
            total_bytes=memory.total_bytes,
            available_bytes=memory.available_bytes,
            pressure=memory.pressure,
        )

    async def _start(self, order: RankOrder) -> RankStarted:
        """Raises: OSError, ProcessGoneError: there is no rank."""
        if self._over.is_set() or self._following is not None:
            raise OSError("a session has one rank, and this one has had it, or ends")
        self._rank = rank = LocalRank(order, self._lines, self._records.begun())
        self._following = self._tasks.start(self._follow(rank), "rank")
        return RankStarted(identify(rank.pid))

    async def _follow(self, rank: LocalRank) -> None:
        end = await rank.ended()
        self._rank = None
        await self._send_lines()
        if self._reason:
            reason = f"its host has ended it, as {self._reason}: {end.reason}"
            end = RankEnd(end.status, reason, by_host=True)
        self._pipe.send(RankEnded(end))

    async def _send_lines(self) -> None:
        if not self._pipe.is_clogged and (lines := self._lines.drain()) is not None:
            self._pipe.send(lines)

    async def _end_rank(self, rank: LocalRank, following: asyncio.Task[None]) -> None:
        """End the rank by the steps for workers whose gateway is gone."""
        logger.warning("Rank %d is ended: %s", rank.pid, self._reason)
        ended = asyncio.Event()
        following.add_done_callback(lambda _: ended.set())
        for timed in shutdown_steps.orphaned(self._footprint_bytes):
            await (rank.end() if timed.step is ShutdownStep.TERMINATE else rank.kill())
            if await until_set(ended, timed.deadline_s):
                return
        logger.error("Rank %d survived SIGKILL; its memory stays taken", rank.pid)


class RankRecords:
    """The records of ranks on this machine: a folder for each running program, and beside it a file
    with the program's identity. The ranks of a program that was killed end by themselves, unless
    they were stopped.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._program_folder = folder / str(os.getpid())

    def begun(self) -> WorkerRecords:
        """Begin this program's own records. Raises: OSError, ProcessGoneError."""
        make_folder(self._program_folder)
        write_state(self._program_folder.with_suffix(".json"), identify(os.getpid()))
        return WorkerRecords(self._program_folder)

    def end_orphans(self) -> None:
        """End the ranks of programs that have ended. Blocks."""
        for file in self._folder.glob("*.json"):
            identity = read_state(file, ProcessIdentity)
            if identity is None or not alive(identity):
                folder = file.with_suffix("")
                if folder.is_dir():
                    end_orphans(WorkerRecords(folder))
                self._remove(folder)

    def close(self) -> None:
        self._remove(self._program_folder)

    def _remove(self, folder: Path) -> None:
        with contextlib.suppress(OSError):
            folder.rmdir()
            folder.with_suffix(".json").unlink(missing_ok=True)


def run() -> None:
    """Serve the gateway at the other end of standard input and output."""
    pipe = MessagePipe()

    async def serve() -> None:
        await Remote(pipe, default_state_dir() / "remote").serve()

    asyncio.run(serve())
