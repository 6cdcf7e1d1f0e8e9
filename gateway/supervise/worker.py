"""One incarnation of a model: its process and its link, and what is known of it."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Iterable
from typing import Final, Protocol

import zmq

from gateway.logs.line import about
from gateway.memory.reading import Footprint
from gateway.state_dir import StateDir
from gateway.supervise.identity import ProcessIdentity, descendants, send
from gateway.supervise.ladder import Rung, Step
from gateway.supervise.link import Link
from gateway.supervise.process import ExitStatus, WorkerProcess
from gateway.supervise.records import WorkerRecords
from gateway.supervise.worker_log import WorkerLog
from protocol.messages import (
    Heartbeat,
    Message,
    MlxMemory,
    Output,
    Ready,
    Stop,
    WorkerMessage,
)
from protocol.signals import DUMP_STACKS

logger = logging.getLogger(__name__)

# A worker that ends by itself closes its connection first; the end of the process follows.
_EXIT_FOLLOWS_S: Final = 2.0
# The other way round, for one that was killed: ZeroMQ's thread may still read its last frames.
_LAST_FRAMES_S: Final = 0.5


class Supervisor(Protocol):
    """Who is told what a worker does. Every call comes on the event loop."""

    def worker_said(self, worker: Worker, message: WorkerMessage) -> None: ...

    def worker_misbehaved(self, worker: Worker, reason: str) -> None: ...

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
        supervisor: Supervisor,
        *,
        incarnation: int,
        name: str,
        python: str | None,
        spare: bool,
    ) -> None:
        """Start a worker.

        Raises:
            OSError: its interpreter can't be started.
        """
        self.incarnation = incarnation
        self.started_at = time.time()
        self.footprint: Footprint | None = None
        self.peak_footprint_bytes = 0
        self.granted_bytes: int | None = None
        # What its model takes of it, and MLX's own account; known once it is loaded.
        self.weight_bytes: int | None = None
        self._mlx: MlxMemory | None = None
        # Right after its load; and what was last remembered of it.
        self.idle_bytes: int | None = None
        self.learned: tuple[int, int | None] | None = None
        self.fingerprint: str | None = None
        self.tokens_per_s: float | None = None
        self.ended = asyncio.Event()
        self.given_up = False
        self._descendants: set[ProcessIdentity] = set()
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
                incarnation,
                log,
                records,
                self._on_exit_in_thread,
                name=name,
                spare=spare,
            )
        except OSError:
            self._link.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def held_bytes(self) -> int | None:
        """By the last reading; None: there was none yet."""
        return None if self.footprint is None else self.footprint.current_bytes

    @property
    def cache_bytes(self) -> int | None:
        """Of its sequences, with what a step computes on."""
        if self._mlx is None or self.weight_bytes is None:
            return None
        return max(0, self._mlx.active_bytes - self.weight_bytes)

    @property
    def buffer_bytes(self) -> int | None:
        """What MLX keeps for later, once the model is loaded."""
        if self._mlx is None or self.weight_bytes is None:
            return None
        return self._mlx.cache_bytes

    @property
    def last_step_age_s(self) -> float | None:
        return None if self._last_step_at is None else self._loop.time() - self._last_step_at

    def adopt(self, supervisor: Supervisor, log: WorkerLog) -> None:
        """Give it to another supervisor."""
        self._supervisor = supervisor
        log.begin(self.pid, self.incarnation)
        self._process.log = log

    def send(self, message: Message) -> None:
        if not self._link.send(message):
            # Either it doesn't read, or it is gone and the news of that are on their way.
            self._loop.call_later(_LAST_FRAMES_S, self._check_reads)

    def note_footprint(self, footprint: Footprint) -> None:
        self.footprint = footprint
        self.peak_footprint_bytes = max(
            self.peak_footprint_bytes, footprint.current_bytes, footprint.peak_bytes or 0
        )

    def count_tokens(self) -> None:
        """Close one window of the tokens-per-second figure."""
        now = self._loop.time()
        self.tokens_per_s = self._tokens / max(now - self._tokens_counted_at, 1e-3)
        self._tokens, self._tokens_counted_at = 0, now

    async def look_for_descendants(self) -> None:
        """What it has started ends with it, but can't be found any more once it has ended."""
        found = await asyncio.to_thread(descendants, [self.pid])
        self.note_descendants(found[self.pid])

    def note_descendants(self, found: set[ProcessIdentity]) -> None:
        # None may mean that the process has just ended, and that they have lost their parent.
        self._descendants = found or self._descendants

    async def climb(self, rungs: Iterable[Rung]) -> None:
        """End the process, a step after the other until it is gone."""
        await self.look_for_descendants()
        for rung in rungs:
            if self.ended.is_set():
                return
            if rung.step is Step.ASK and not self._link.connected:
                continue  # It can't hear yet, and holds nothing yet: SIGTERM is as gentle.
            began = self._loop.time()
            self._take(rung.step)
            try:
                async with asyncio.timeout(rung.deadline_s):
                    await self.ended.wait()
            except TimeoutError:
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
            case Heartbeat(step_age_s=age_s, memory=memory):
                self._mlx = memory
                if age_s is not None:
                    self._last_step_at = self._loop.time() - age_s
            case Ready(weight_bytes=weight_bytes, memory=memory):
                self.weight_bytes = weight_bytes
                self._mlx = memory
            case _:
                pass
        self._supervisor.worker_said(self, message)

    def _on_garbage(self, reason: str) -> None:
        self._supervisor.worker_misbehaved(self, f"it broke the protocol: {reason}")

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
        for process in self._descendants:
            send(process, signal.SIGKILL)
        self._supervisor.worker_ended(self, self._exit_status)
