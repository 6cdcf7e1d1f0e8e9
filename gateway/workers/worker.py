"""One incarnation of a model: its process, its link, its memory and its last report."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol

import psutil
import zmq

from gateway.memory.allocation import WorkerReading
from gateway.system.child import ExitStatus
from gateway.system.clock import until_set
from gateway.system.lane import Lane
from gateway.system.log_lines import about
from gateway.system.memory import FootprintGauge
from gateway.system.memory_reading import Footprint, together
from gateway.system.memory_tree import TreeGauge
from gateway.system.processes import Descendants
from gateway.system.tasks import Tasks
from gateway.workers.followers import Followers
from gateway.workers.link import Link
from gateway.workers.process import AdoptedProcess, WorkerProcess
from gateway.workers.rank_group import Loss
from gateway.workers.report import PromptClears, WorkerMemory, WorkerReport, WorkerState
from gateway.workers.shutdown_steps import ShutdownStep, TimedStep, after_rank_failure
from gateway.workers.worker_log import WorkerLog
from protocol.channel import Keys
from protocol.life import (
    ClearPromptCache,
    Limit,
    Load,
    Move,
    Settle,
    Stay,
    Stop,
)
from protocol.message_base import Message
from protocol.messages import ProtocolError, VersionError, WorkerMessage
from protocol.process import DUMP_STACKS
from protocol.process_tree import CommandProcesses

logger = logging.getLogger(__name__)

# A worker that ends by itself closes its connection first, and exits within this time.
_EXIT_FOLLOWS_S: Final = 2.0
# The longest wait for a reading of one process: a reading can hang like the process itself.
_READING_S: Final = 5.0
# After a worker's death ZeroMQ's thread may still read its last frames for this time.
_LAST_FRAMES_S: Final = 0.5
# The wait after SIGKILL for processes that a guard has left.
_KILL_S: Final = 10.0


class Listener(Protocol):
    """The supervisor of a worker, as the worker sees it: gets all reports, on the event loop."""

    def worker_sent(self, worker: Worker, message: WorkerMessage) -> None: ...

    def worker_misbehaved(self, worker: Worker, reason: str) -> None: ...

    def worker_outgrew(self, worker: Worker, reason: str) -> None:
        """Other hosts lack the memory that the worker's ranks need to go on."""

    def worker_is_foreign(self, worker: Worker, reason: str) -> None:
        """The worker has another version than this gateway, as the next one would have."""

    def worker_outlived(self, worker: Worker, step: ShutdownStep, seconds: float) -> None:
        """A step of the shutdown sequence has not ended the worker within `seconds`."""

    def worker_ended(self, worker: Worker, status: ExitStatus) -> None:
        """The worker has ended. Called once, after all messages of the worker."""


class Worker:
    """A worker's process and its reports. `started_at` is a Unix time in seconds.

    If several ranks compute the model, the worker is rank 0. Then it has `followers` and ends with
    them, and its bytes are those of all ranks on this machine.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        path: Path,
        listener: Listener,
        start: Callable[[Link, Callable[[ExitStatus], None]], WorkerProcess | AdoptedProcess],
        *,
        incarnation: int,
        keys: Keys | None = None,
        mark: str | None = None,
        files: tuple[str, ...] = (),
    ) -> None:
        """Listen at `path`, and `start` the process. `keys` are those of a worker that an earlier
        gateway hands over; None: the worker is new. The processes of a command have a `mark`, and
        load these `files`.

        Raises:
            OSError: the process can't be started.
        """
        self.incarnation = incarnation
        self.mark = mark
        self._files = files
        # A guard that was killed may leave processes.
        self._cleared = mark is None
        self._clearing = False
        self.started_at = time.time()
        self.memory = WorkerMemory()
        # The footprint of this process alone, without its followers.
        self.own_footprint_bytes: int | None = None
        self.report = WorkerReport(self.memory)
        self._clears = PromptClears()
        self.ended = asyncio.Event()
        self.survived_kill = False
        # Set when the worker has sent its last message here, before it moves to another gateway.
        self.moved = asyncio.Event()
        self._left = False
        # Messages that wait until the worker has come from an earlier gateway; None: messages are
        # sent at once.
        self._early: list[Message] | None = None if keys is None else [Settle()]
        self.settled = asyncio.Event()
        self.followers: Followers | None = None
        # The last limit for the worker, before it is cut to the memory that other hosts keep.
        self._limit: Limit | None = None
        self._tasks = Tasks(f"worker {incarnation}")
        self._lane = Lane(f"worker-{incarnation}")
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._exit_status: ExitStatus | None = None
        self._disconnected = False
        self._link = Link(context, path, self, keys)
        try:
            self._process = start(self._link, self._on_exit_in_thread)
        except BaseException:
            self._link.close()
            raise
        self._command = None if mark is None else CommandProcesses(self.pid, mark)
        self._footprint = (
            FootprintGauge(self.pid)
            if self._command is None
            else TreeGauge(self.pid, self._command, files, lambda: self.memory.is_loaded)
        )
        self.descendants = Descendants(self.pid, self._lane)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """The pids of the model's ranks on this machine."""
        others = () if self.followers is None else self.followers.members
        processes = (other.process for other in others if other.is_here)
        return [self.pid, *(process.pid for process in processes if process is not None)]

    def adopt(self, listener: Listener, log: WorkerLog) -> None:
        """Pass the worker to another supervisor."""
        self._listener = listener
        log.mark_start(self.pid, self.incarnation)
        self._process.log = log

    @property
    def state(self) -> WorkerState:
        """The worker's state, for the next gateway. Raises: ProcessGoneError, OSError."""
        return WorkerState(
            process=self._process.identity,
            incarnation=self.incarnation,
            started_at=self.started_at,
            memory=self.memory.state,
            context_tokens=self.report.context_tokens,
            short_of_memory=self.report.short_of_memory,
            fingerprint=self.report.fingerprint,
            abilities=self.report.abilities,
            sampling=self.report.sampling,
            clears=len(self._clears),
            mark=self.mark,
            files=self._files,
            address=self.report.address,
            alone=self.report.alone,
            prompts=self.report.prompts,
        )

    @property
    def output(self) -> int:
        """The descriptor from which the process's output is read."""
        return self._process.output

    def restore(self, state: WorkerState) -> None:
        """Go on from the state of an earlier gateway."""
        self.started_at = state.started_at
        self.memory.restore(state.memory)
        self.report.context_tokens = state.context_tokens
        self.report.short_of_memory = state.short_of_memory
        self.report.fingerprint = state.fingerprint
        self.report.abilities = state.abilities
        self.report.sampling = state.sampling
        self._clears = PromptClears(state.clears)
        self.report.address = state.address
        self.report.alone = state.alone
        self.report.prompts = state.prompts

    def read_output(self, begun: bytes) -> None:
        """Read the output of an adopted worker from now on. `begun` is the part of a line that was
        read already.
        """
        if isinstance(self._process, AdoptedProcess):
            self._process.read_output(begun)

    def hand_over(self) -> bytes:
        """Leave the worker to another gateway. From now on this gateway neither hears nor signals
        it. Returns the part of an unfinished line that was read.
        """
        self._left = True
        self._link.close()
        return self._process.hand_over()

    @property
    def loss(self) -> Loss | None:
        """The lost rank that has ended all ranks, as far as it is known; None: no rank was lost."""
        return None if self.followers is None else self.followers.fate.loss

    def followers_started(self, failure: str | None) -> None:
        if failure is not None and self._exit_status is None:
            self._misbehaved(failure)
        self._finish()

    def reservation_changed(self, failure: str | None) -> None:
        if failure is not None:
            self._listener.worker_outgrew(self, failure)
        elif self._limit is not None and not self.ended.is_set():
            self.send(self._limit)

    def follower_ended(self) -> None:
        self._finish()

    def end_ranks(self) -> None:
        """End all ranks, as one of them was lost."""
        if self.loss is not None:
            logger.error("Worker %d: %s", self.pid, self.loss.reason, extra=about(pid=self.pid))
        self._tasks.start(self.shut_down(after_rank_failure(self.memory.held_bytes)), "end ranks")

    def send(self, message: Message) -> None:
        if self._left:
            return
        if self._early is not None:
            self._early.append(message)
            return
        match message:
            case Limit():
                self._limit = message
            case Load(limit_bytes=int(limit_bytes)):
                self._limit = Limit(
                    limit_bytes=limit_bytes,
                    beside_bytes=message.beside_bytes,
                    bound=message.bound,
                )
            case _:
                pass
        if self.followers is not None:
            message = self.followers.to_rank_0(message)
        if not self._link.send(message):
            # The worker doesn't read, or has ended: in that case its exit will soon be known.
            self._loop.call_later(_LAST_FRAMES_S, self._check_reads)

    async def measure(self) -> WorkerReading | None:
        """Read the footprints of all ranks on this machine. None: the model was loaded meanwhile.

        Raises:
            FootprintError: a footprint can't be read.
            OSError: no answer comes, or no thread can be started.
        """
        loaded, obeyed_bytes = self.memory.is_loaded, self.memory.obeyed_bytes
        footprint = await self._read_footprint()
        return self.memory.record_footprint(footprint, loaded=loaded, obeyed_bytes=obeyed_bytes)

    async def _read_footprint(self) -> Footprint:
        footprint = await self._lane.run(
            self._footprint.read, _READING_S, f"the footprint of {self.pid}"
        )
        self.own_footprint_bytes = footprint.current_bytes
        if self.followers is None:
            return footprint
        return together([footprint, *await self.followers.read_footprints()])

    async def move(self, order: Move, deadline_s: float) -> bool:
        """Have the worker move to another gateway. Returns False if the worker hasn't sent its last
        message here in time, or has ended.
        """
        self.moved.clear()
        self.send(order)
        return await until_set(self.moved, deadline_s) and not self.ended.is_set()

    def stay(self) -> None:
        """Keep the worker, as no other gateway takes it over after all."""
        self.moved.clear()
        if self._link.connected:
            self.send(Stay())
        elif not self.ended.is_set():
            # The worker has settled with the other gateway, which is gone, and therefore ends.
            self.link_disconnected()

    async def clear_prompts(self, deadline_s: float) -> int | None:
        """Have the worker drop the prompts in its memory. Returns the freed bytes, which are 0 if
        the worker has ended meanwhile. Returns None if the worker doesn't answer in time, or has
        too many orders already.
        """
        if (answer := self._clears.order()) is None:
            return None
        self.send(ClearPromptCache())
        await asyncio.wait({answer}, timeout=deadline_s)
        return answer.result() if answer.done() else None

    async def shut_down(self, steps: Iterable[TimedStep]) -> None:
        """End the worker by the steps of a shutdown sequence. After a failed step the next one
        follows at once.
        """
        if self.followers is not None:
            self.followers.fate.end()
        await self.descendants.look()
        for step, deadline_s in steps:
            if self.ended.is_set() or self._left:
                return
            if step is ShutdownStep.ASK and not self._link.connected:
                continue  # Without a connection the worker holds nothing: SIGTERM is as gentle.
            began = self._loop.time()
            try:
                self._apply(step)
                if self.followers is not None:
                    await self.followers.apply(step)
            except Exception:
                logger.exception("Worker %d: %s", self.pid, step, extra=about(pid=self.pid))
                continue
            if not await until_set(self.ended, deadline_s):
                if step is not ShutdownStep.DUMP:
                    self._listener.worker_outlived(self, step, deadline_s)
                continue
            seconds = self._loop.time() - began
            logger.info(
                "Worker %d ended %.2f s after %s",
                self.pid,
                seconds,
                step,
                extra=about(pid=self.pid, seconds=seconds),
            )
            return
        self.survived_kill = True
        runs_here = self._exit_status is None or (
            self.followers is not None and self.followers.running_here
        )
        logger.error(
            "Worker %d survived SIGKILL; its memory stays taken"
            if runs_here
            else "Worker %d has ended; its ranks elsewhere are waited for",
            self.pid,
            extra=about(pid=self.pid),
        )

    def _apply(self, step: ShutdownStep) -> None:
        match step:
            case ShutdownStep.DUMP:
                self._process.send_signal(DUMP_STACKS)
                # A stopped process could not dump its stacks.
                self._process.send_signal(signal.SIGCONT)
            case ShutdownStep.ASK:
                self._link.send(Stop())
            case ShutdownStep.TERMINATE:
                self._process.send_signal(signal.SIGTERM)
            case ShutdownStep.KILL:
                self._process.send_signal(signal.SIGKILL)

    def link_received(self, message: WorkerMessage) -> None:
        if self.followers is not None:
            message = self.followers.from_rank_0(message)
        self._listener.worker_sent(self, message)

    def record_cleared(self, reclaimed_bytes: int) -> None:
        """Record the worker's answer to an order to drop prompts."""
        if not self._clears.answered(reclaimed_bytes):
            self._misbehaved("it broke the protocol: it cleared prompts unasked")

    def link_broke(self, error: ProtocolError) -> None:
        if isinstance(error, VersionError):
            self._listener.worker_is_foreign(self, str(error))
        else:
            self._misbehaved(f"it broke the protocol: {error}")

    def _misbehaved(self, reason: str) -> None:
        self._listener.worker_misbehaved(self, reason)

    def _check_reads(self) -> None:
        if not self._disconnected and not self.ended.is_set() and not self._left:
            self._misbehaved("it doesn't read its messages")

    def link_connected(self) -> None:
        early, self._early = self._early, None
        for message in early or ():
            self.send(message)
        self.settled.set()

    def link_disconnected(self) -> None:
        if self.moved.is_set():
            return  # The worker connects to the next gateway.
        self._disconnected = True
        if self._exit_status is not None:
            self._finish()
        else:
            self._loop.call_later(_EXIT_FOLLOWS_S, self._check_exit_followed)

    def _check_exit_followed(self) -> None:
        if self._exit_status is None:
            self._misbehaved("it closed its connection, or sent a frame over the size limit")

    async def _clear(self) -> None:
        """Kill the processes of the command that the guard has left, and remove their socket."""
        assert self._command is not None
        self._clearing = True
        try:
            kill = functools.partial(_clear_up, self._command, self.report.address)
            if not await self._lane.run(kill, _KILL_S * 2, "the list of processes"):
                logger.error(
                    "Processes that worker %d has guarded survived SIGKILL",
                    self.pid,
                    extra=about(pid=self.pid),
                )
        except (OSError, psutil.Error) as error:
            logger.warning("Processes of worker %d can't be ended: %s", self.pid, error)
        self._clearing = False
        self._finish()

    def _on_exit_in_thread(self, status: ExitStatus) -> None:
        self._loop.call_soon_threadsafe(self._on_exit, status)

    def _on_exit(self, status: ExitStatus) -> None:
        if self._left:
            return
        self._exit_status = status
        if self.followers is not None:
            self.followers.leader_ended(status)
        if self._link.connected:
            self._loop.call_later(_LAST_FRAMES_S, self._finish)
        else:
            self._finish()

    def _finish(self) -> None:
        if self.ended.is_set() or self._exit_status is None:
            return
        if not self._cleared:
            self._cleared = True
            self._tasks.start(self._clear(), "end of what was guarded")
            return
        if self._clearing:
            return
        if self.followers is not None:
            if not self.followers.fate.over:
                return
            self.followers.close()
        self.ended.set()
        self.moved.set()
        self.settled.set()
        self._link.close()
        self._clears.close()
        self.descendants.end()
        status = self._exit_status if self.loss is None else self.loss.status
        self._listener.worker_ended(self, status)


def _clear_up(command: CommandProcesses, address: str) -> bool:
    """Kill what a guard has left, and remove the server's socket. Returns whether all have ended.

    Raises: OSError: the socket can't be removed.
    """
    ended = command.kill(_KILL_S)
    if (path := address.partition("@")[2]).startswith("/"):
        Path(path).unlink(missing_ok=True)
    return ended
