"""One incarnation of a model: its process and its link, and what is known of it."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import time
from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

import zmq

from gateway.clock.waiting import until_set
from gateway.logs.line import about
from gateway.memory.footprint import footprint
from gateway.memory.reading import Footprint
from gateway.process.identity import ProcessIdentity, descendants, send
from gateway.process.ladder import Rung, Step
from gateway.process.link import Link
from gateway.process.process import ExitStatus, WorkerProcess
from gateway.process.records import WorkerRecords
from gateway.process.worker_log import WorkerLog
from gateway.process.worker_memory import WorkerMemory
from gateway.state.state_dir import StateDir
from gateway.system.lane import Lane
from protocol.codec import ProtocolError, VersionError
from protocol.messages import (
    Ability,
    ClearPromptCache,
    Embedded,
    Heartbeat,
    Message,
    Need,
    Output,
    PromptCacheCleared,
    Ready,
    Stop,
    WorkerMessage,
)
from protocol.signals import DUMP_STACKS

logger = logging.getLogger(__name__)

# A worker that ends by itself closes its connection first; the end of the process follows.
_EXIT_FOLLOWS_S: Final = 2.0
# For a look at all processes, which takes some ten milliseconds; no end waits any longer for it.
_LOOK_S: Final = 0.5
# For a reading of one process: it can hang like the process itself.
_READING_S: Final = 5.0
# What could not be signalled just now is tried again so often, a second apart.
_TRIES: Final = 5
# The other way round, for one that was killed: ZeroMQ's thread may still read its last frames.
_LAST_FRAMES_S: Final = 0.5
# Orders to let go of prompts that a worker hasn't answered yet.
_MOST_CLEARS: Final = 16


class Listener(Protocol):
    """Who is told what a worker does. Every call comes on the event loop."""

    def worker_said(self, worker: Worker, message: WorkerMessage) -> None: ...

    def worker_misbehaved(self, worker: Worker, reason: str) -> None: ...

    def worker_is_foreign(self, worker: Worker, reason: str) -> None:
        """It is of another version than this gateway, and so would the next one be."""

    def worker_outlived(self, worker: Worker, step: Step, seconds: float) -> None:
        """A step of its stop ladder has not ended it."""

    def worker_ended(self, worker: Worker, status: ExitStatus) -> None:
        """Comes once, after everything that the worker said."""


class Worker:
    """A process and what it has told about itself. Times without a unit are the event loop's."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        state_dir: StateDir,
        log: WorkerLog,
        records: WorkerRecords,
        supervisor: Listener,
        *,
        incarnation: int,
        name: str,
        python: str | None,
        spare: bool,
    ) -> None:
        """Start a worker.

        Raises:
            OSError: its process can't be started.
        """
        self.incarnation = incarnation
        self.started_at = time.time()
        self.memory = WorkerMemory()
        # In force, once it is loaded.
        self.context_tokens: int | None = None
        # What waits in it for memory alone, by its last word.
        self.short_of_memory = 0
        self.fingerprint: str | None = None
        self.abilities: tuple[Ability, ...] = ("text",)
        # Who waits for its word that they are gone, in the order of asking.
        self._clears: deque[asyncio.Future[int]] = deque()
        self.tokens_per_s: float | None = None
        self.ended = asyncio.Event()
        self.given_up = False
        self._descendants: set[ProcessIdentity] = set()
        self._lane = Lane(f"worker-{incarnation}")
        self._loop = asyncio.get_running_loop()
        self._supervisor = supervisor
        self._last_step_at: float | None = None
        self._tokens = 0
        self._tokens_counted_at = self._loop.time()
        self._exit_status: ExitStatus | None = None
        self._disconnected = False
        self._link = Link(
            context,
            state_dir.socket_path(incarnation),
            self._on_message,
            self._on_garbage,
            self._on_disconnect,
        )
        try:
            self._process = WorkerProcess(
                python,
                self._link.address,
                self._link.key,
                incarnation,
                log,
                records,
                self._on_exit_in_thread,
                name=name,
                spare=spare,
            )
        except BaseException:
            self._link.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def last_step_age_s(self) -> float | None:
        return None if self._last_step_at is None else self._loop.time() - self._last_step_at

    def adopt(self, supervisor: Listener, log: WorkerLog) -> None:
        """Give it to another supervisor."""
        self._supervisor = supervisor
        log.begin(self.pid, self.incarnation)
        self._process.log = log

    def send(self, message: Message) -> None:
        if not self._link.send(message):
            # Either it doesn't read, or it is gone and the news of that are on their way.
            self._loop.call_later(_LAST_FRAMES_S, self._check_reads)

    async def read_footprint(self) -> Footprint:
        """Raises: FootprintError; OSError if no answer comes, or there is no thread for it."""
        return await self._lane.run(
            functools.partial(footprint, self.pid), _READING_S, f"the footprint of {self.pid}"
        )

    def count_tokens(self) -> None:
        """Close one window of the tokens-per-second figure."""
        now = self._loop.time()
        self.tokens_per_s = self._tokens / max(now - self._tokens_counted_at, 1e-3)
        self._tokens, self._tokens_counted_at = 0, now

    async def clear_prompts(self, deadline_s: float) -> int | None:
        """Have it let go of the prompts in its memory: the bytes that are free, 0 if it has ended
        meanwhile; None if it doesn't answer in time.
        """
        if len(self._clears) >= _MOST_CLEARS:
            return None
        answer: asyncio.Future[int] = self._loop.create_future()
        self._clears.append(answer)
        self.send(ClearPromptCache())
        await asyncio.wait({answer}, timeout=deadline_s)
        return answer.result() if answer.done() else None

    async def look_for_descendants(self) -> None:
        """What it has started ends with it, but can't be found any more once it has ended. Without
        an answer there are those that were known.
        """
        try:
            found = await self._lane.run(
                functools.partial(descendants, [self.pid]), _LOOK_S, "the list of processes"
            )
        except Exception as error:
            logger.warning(
                "What worker %d has started can't be looked for: %s",
                self.pid,
                error,
                extra=about(pid=self.pid),
            )
        else:
            self.note_descendants(found[self.pid])

    def note_descendants(self, found: set[ProcessIdentity]) -> None:
        # None may mean that the process has just ended, and that they have lost their parent.
        self._descendants = found or self._descendants

    async def climb(self, rungs: Iterable[Rung]) -> None:
        """End the process, a step after the other until it is gone. A step that fails is followed
        by the next one at once.
        """
        await self.look_for_descendants()
        for rung in rungs:
            if self.ended.is_set():
                return
            if rung.step is Step.ASK and not self._link.connected:
                continue  # It can't hear yet, and holds nothing yet: SIGTERM is as gentle.
            began = self._loop.time()
            try:
                self._take(rung.step)
            except Exception:
                logger.exception("Worker %d: %s", self.pid, rung.step, extra=about(pid=self.pid))
                continue
            if not await until_set(self.ended, rung.deadline_s):
                if rung.step is not Step.DUMP:
                    self._supervisor.worker_outlived(self, rung.step, rung.deadline_s)
                continue
            seconds = self._loop.time() - began
            logger.info(
                "Worker %d ended %.2f s after %s",
                self.pid,
                seconds,
                rung.step,
                extra=about(pid=self.pid, seconds=seconds),
            )
            return
        self.given_up = True
        logger.error(
            "Worker %d survived SIGKILL; its memory stays taken",
            self.pid,
            extra=about(pid=self.pid),
        )

    def _take(self, step: Step) -> None:
        match step:
            case Step.DUMP:
                self._process.send_signal(DUMP_STACKS)
                # One that was stopped couldn't.
                self._process.send_signal(signal.SIGCONT)
            case Step.ASK:
                self._link.send(Stop())
            case Step.TERMINATE:
                self._process.send_signal(signal.SIGTERM)
            case Step.KILL:
                self._process.send_signal(signal.SIGKILL)

    def _on_message(self, message: WorkerMessage) -> None:
        match message:
            case Output(deltas=deltas):
                self._last_step_at = self._loop.time()
                self._tokens += sum(len(delta.token_ids) for delta in deltas)
            case Embedded(tokens=tokens):
                self._last_step_at = self._loop.time()
                self._tokens += tokens
            case PromptCacheCleared(reclaimed_bytes=reclaimed_bytes):
                if not self._clears:
                    self._misbehaved("it broke the protocol: it cleared prompts unasked")
                    return
                self._clears.popleft().set_result(max(0, reclaimed_bytes))
            case Heartbeat(step_age_s=age_s, memory=memory, prompt_cache_bytes=prompt_bytes):
                self.memory.heard(memory, prompt_bytes)
                if age_s is not None:
                    self._last_step_at = self._loop.time() - age_s
            case Ready(weight_bytes=weight_bytes, context_tokens=context_tokens, memory=memory):
                self.memory.loaded(weight_bytes, memory)
                self.context_tokens = context_tokens
            case Need(context_tokens=context_tokens):
                self.context_tokens = context_tokens
            case _:
                pass
        self._supervisor.worker_said(self, message)

    def _on_garbage(self, error: ProtocolError) -> None:
        if isinstance(error, VersionError):
            self._supervisor.worker_is_foreign(self, str(error))
        else:
            self._misbehaved(f"it broke the protocol: {error}")

    def _misbehaved(self, reason: str) -> None:
        self._supervisor.worker_misbehaved(self, reason)

    def _check_reads(self) -> None:
        if not self._disconnected and not self.ended.is_set():
            self._supervisor.worker_misbehaved(self, "it doesn't read its messages")

    def _on_disconnect(self) -> None:
        self._disconnected = True
        if self._exit_status is not None:
            self._finish()
        else:
            self._loop.call_later(_EXIT_FOLLOWS_S, self._check_exit_followed)

    def _check_exit_followed(self) -> None:
        if self._exit_status is None:
            self._supervisor.worker_misbehaved(
                self, "it closed its connection, or sent a frame over the size limit"
            )

    def _on_exit_in_thread(self, status: ExitStatus) -> None:
        self._loop.call_soon_threadsafe(self._on_exit, status)

    def _on_exit(self, status: ExitStatus) -> None:
        self._exit_status = status
        if self._link.connected:
            self._loop.call_later(_LAST_FRAMES_S, self._finish)
        else:
            self._finish()

    def _finish(self) -> None:
        if self.ended.is_set() or self._exit_status is None:
            return
        self.ended.set()
        self._link.close()
        while self._clears:
            self._clears.popleft().set_result(0)
        self._end_descendants(_TRIES)
        self._supervisor.worker_ended(self, self._exit_status)

    def _end_descendants(self, tries: int) -> None:
        left = set()
        for process in self._descendants:
            try:
                send(process, signal.SIGKILL)
            except OSError as error:
                left.add(process)
                logger.warning("Process %d can't be ended: %s", process.pid, error)
        self._descendants = left
        if left and tries > 1:
            self._loop.call_later(1.0, self._end_descendants, tries - 1)
