"""One model's compartment: its life cycle, its worker, and the requests that wait or run in it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import zmq
from msgspec import Struct

from gateway.config.settings import Settings
from gateway.config.sizes import format_size
from gateway.dispatch.queue import RequestQueue
from gateway.dispatch.refusal import Refusal
from gateway.dispatch.request import Request
from gateway.memory.footprint import FootprintError, footprint
from gateway.state_dir import StateDir
from gateway.supervise import ladder
from gateway.supervise.lifecycle import Effect, Event, ImpossibleTransitionError, Lifecycle, State
from gateway.supervise.model import Model
from gateway.supervise.process import ExitStatus
from gateway.supervise.tasks import Tasks
from gateway.supervise.worker import Worker
from gateway.supervise.worker_log import WorkerLog
from protocol.messages import (
    Cancel,
    Drain,
    Heartbeat,
    Hello,
    Load,
    LoadFailed,
    LoadProgress,
    Output,
    Ready,
    RequestFailed,
    WorkerMessage,
)

logger = logging.getLogger(__name__)

# A fatal error prints the stacks of all threads: its first line must be among these.
_LOG_TAIL_LINES: Final = 80
_RETRY_AFTER_S: Final = 5


class LastExit(Struct, frozen=True):
    """How the last worker ended; `at` is a Unix time in seconds."""

    at: float
    code: int | None
    signal: str | None
    reason: str
    log_tail: list[str]


class Compartment:
    """Feeds the life cycle with what happens, and performs the effects that it decides on.

    Everything runs on the event loop and nothing between two awaits can interleave, so a decision
    and its effects are one step.
    """

    def __init__(
        self,
        model: Model,
        settings: Settings,
        grant_bytes: int | None,
        context: zmq.Context[zmq.Socket[bytes]],
        state_dir: StateDir,
    ) -> None:
        self.model = model
        self.log = WorkerLog(state_dir.log_path(model.id))
        self.requests = RequestQueue(model.id, settings.queue.depth, model.settings.max_concurrency)
        self.worker: Worker | None = None
        self.last_exit: LastExit | None = None
        self.restarts = 0
        self.last_used_at: float | None = None
        self.reason: str | None = None
        self.failure: Refusal | None = None
        self._settings = settings
        self._grant_bytes = grant_bytes
        self._context = context
        self._state_dir = state_dir
        self._lifecycle = Lifecycle()
        self._incarnation = 0
        self._tasks = Tasks(model.id)
        self._ladder: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._crashed = False
        self._end_reason: str | None = None

    # What others ask

    @property
    def state(self) -> State:
        return self._lifecycle.state

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a state of affairs. Whoever waits brings the deadline."""
        while not condition():
            await self._changed.wait()

    async def until_idle(self) -> None:
        await self.until(lambda: self.requests.waiting + self.requests.running == 0)

    async def until_measured(self) -> None:
        """Wait for the first footprint of the loaded worker."""
        await self.until(lambda: self.worker is None or self.worker.footprint is not None)

    async def until_ended(self) -> None:
        """Wait until no process is left, or the ladder has given up on one."""
        while self._lifecycle.alive and (self._ladder is None or not self._ladder.done()):
            await self._changed.wait()

    # Requests

    def submit(self, request: Request) -> None:
        """Take a request in; it starts the model if need be.

        Raises:
            Refusal: the queue is full.
        """
        self.requests.add(request)
        self.last_used_at = time.time()
        self._handle(Event.DEMAND, self._unavailable())

    def cancel(self, request: Request) -> None:
        """Its client is gone."""
        if self.requests.remove(request):
            if self.worker is not None:
                self.worker.send(Cancel(request_id=request.id))
            self._dispatch()
        self._notify()

    def tick(self, now: float, remind_after_s: float) -> None:
        """Refuse what is overdue; remind the readers of the others that time passes."""
        if self.requests.refuse_overdue(now):
            self._notify()
        for request in self.requests:
            request.remind(now, remind_after_s)

    def refuse_all(self, refusal: Refusal) -> None:
        self.requests.refuse_waiting(refusal)
        for request in list(self.requests):
            self.cancel(request)
            request.refuse(refusal)
        self._notify()

    # The operator

    def load(self) -> None:
        self._handle(Event.LOAD, self._unavailable())

    def unload(self, *, hold: bool, force: bool) -> None:
        held = Refusal(
            "model_unavailable",
            f"{self.model.id!r} was unloaded by the operator and is held: "
            f"`bulkhead load {self.model.id}` makes it available again.",
            lasting=True,
        )
        self._handle(Event.HOLD if hold else Event.UNLOAD, held)
        if force:
            self._cut_drain()

    def restart(self, *, force: bool) -> None:
        self._handle(Event.RESTART, self._unavailable())
        if force:
            self._cut_drain()

    def kill(self, *, force: bool) -> None:
        self._handle(
            Event.DESTROY if force else Event.KILL,
            Refusal(
                "model_unavailable",
                f"The worker of {self.model.id!r} was killed by the operator while it answered.",
                retry_after_s=_RETRY_AFTER_S,
            ),
        )

    def end(self) -> None:
        """For the gateway's own end: no drain, the polite ladder."""
        self._handle(Event.UNLOAD, self._unavailable())
        self._cut_drain()

    async def close(self) -> None:
        await self._tasks.cancel_all()
        self.log.close()

    # The worker

    def worker_said(self, worker: Worker, message: WorkerMessage) -> None:
        if worker is not self.worker:
            return
        match message:
            case Output(deltas=deltas):
                for delta in deltas:
                    if (request := self.requests.find_running(delta.request_id)) is not None:
                        request.deliver(delta)
                        if request.over:
                            self._finished(request)
            case Heartbeat():
                pass
            case RequestFailed(request_id=request_id, code=code, message=text):
                if (request := self.requests.find_running(request_id)) is not None:
                    request.refuse(Refusal(code, text))
                    self._finished(request)
            case LoadProgress(loaded_bytes=done, total_bytes=total):
                self.reason = f"loading: {format_size(done)} of {format_size(total)}"
            case Hello() | Ready() | LoadFailed():
                self._advance(worker, message)

    def worker_misbehaved(self, worker: Worker, reason: str) -> None:
        if worker is not self.worker:
            return
        logger.error("%s: worker %d is ended: %s", self.model.id, worker.pid, reason)
        self._crashed = True
        self._end_reason = reason
        self._handle(
            Event.MISBEHAVED,
            Refusal("worker_crashed", f"The worker of {self.model.id!r} was ended: {reason}."),
        )

    def worker_ended(self, worker: Worker, status: ExitStatus) -> None:
        if worker is not self.worker:
            return
        expected = self.state is State.STOPPING or (
            self.state is State.DRAINING and status.code == 0
        )
        self._crashed = self._crashed or not expected
        reason = self._end_reason or (
            "stopped as asked" if expected else f"ended unexpectedly while {self.state}"
        )
        self._end_reason = None
        tail = self.log.tail(_LOG_TAIL_LINES)
        self.last_exit = LastExit(
            at=time.time(), code=status.code, signal=status.signal, reason=reason, log_tail=tail
        )
        logger.log(
            logging.INFO if expected else logging.ERROR,
            "%s: worker %d %s (%s)",
            self.model.id,
            worker.pid,
            reason,
            status,
        )
        self.worker = None
        self._handle(Event.EXIT, self._exit_refusal(status, tail))

    def _advance(self, worker: Worker, message: Hello | Ready | LoadFailed) -> None:
        try:
            match message:
                case Hello(incarnation=incarnation) if incarnation != worker.incarnation:
                    self.worker_misbehaved(worker, f"it says it is incarnation {incarnation}")
                case Hello():
                    self._handle(Event.HELLO, self._unavailable())
                case Ready(load_s=load_s):
                    logger.info("%s: loaded in %.1f s", self.model.id, load_s)
                    # A reading from before the load says nothing any more.
                    worker.footprint = None
                    self._tasks.start(self._measure(worker), "first reading")
                    self._handle(Event.LOADED, self._unavailable())
                case LoadFailed(reason=reason, permanent=permanent):
                    self.reason = self._end_reason = reason
                    self._handle(
                        Event.LOAD_IMPOSSIBLE if permanent else Event.LOAD_FAILED,
                        Refusal(
                            "model_unavailable",
                            f"{self.model.id!r} can't be loaded: {reason}",
                            retry_after_s=None if permanent else _RETRY_AFTER_S,
                            lasting=permanent,
                        ),
                    )
        except ImpossibleTransitionError as error:
            self.worker_misbehaved(worker, f"it broke the order of the protocol ({error})")

    def _exit_refusal(self, status: ExitStatus, tail: list[str]) -> Refusal:
        last_line = f" Its last line was: {tail[-1]}" if tail else ""
        if self.state in (State.STARTING, State.LOADING):
            return Refusal(
                "model_unavailable",
                f"The worker of {self.model.id!r} ended while {self.state} ({status}).{last_line}",
                retry_after_s=_RETRY_AFTER_S,
            )
        return Refusal(
            "worker_crashed",
            f"The worker of {self.model.id!r} ended while it answered ({status}).",
        )

    def _unavailable(self) -> Refusal:
        """Why a request can't be served in the present state."""
        lasting = self.state in (State.FAILED, State.HELD)
        reason = self.reason or self.state
        remedy = f" `bulkhead load {self.model.id}` tries again." if lasting else ""
        return Refusal(
            "model_unavailable",
            f"{self.model.id!r} is {self.state}: {reason}.{remedy}",
            retry_after_s=None if lasting else _RETRY_AFTER_S,
            lasting=lasting,
        )

    # The life cycle

    def _handle(self, event: Event, refusal: Refusal) -> None:
        """`refusal` is what requests are told that end by this event."""
        before = self.state
        effects = self._lifecycle.handle(event, requests_wait=self.requests.waiting > 0)
        if self.state is not before:
            logger.info("%s: %s -> %s (%s)", self.model.id, before, self.state, event)
            self._entered(before, refusal)
        for effect in effects:
            self._perform(effect, refusal)
        self._notify()

    def _entered(self, before: State, refusal: Refusal) -> None:
        match self.state:
            case State.STARTING:
                self.reason = self.failure = None
                self._arm_deadline(self._settings.workers.load_timeout_s)
            case State.LOADING:
                pass
            case State.DRAINING:
                self._arm_deadline(self._settings.gateway.drain_s)
            case State.FAILED | State.HELD:
                self._disarm_deadline()
                self.reason = self.reason or refusal.message
            case State.UNLOADED:
                self._disarm_deadline()
                if before is State.FAILED:
                    self.reason = None
            case State.READY | State.STOPPING:
                self._disarm_deadline()
                self.reason = None if self.state is State.READY else self.reason

    def _perform(self, effect: Effect, refusal: Refusal) -> None:
        worker = self.worker
        match effect:
            case Effect.SPAWN:
                self._spawn()
            case Effect.SEND_LOAD:
                self._tasks.start(self._send_load(), "send load")
            case Effect.DISPATCH:
                self._dispatch()
            case Effect.END_RUNNING:
                self.requests.end_running(refusal)
            case Effect.REFUSE_WAITING:
                self.failure = refusal
                self.requests.refuse_waiting(refusal)
            case Effect.DRAIN if worker is not None:
                worker.send(Drain())
            case Effect.STOP if worker is not None:
                self._climb(worker, ladder.polite(_held_bytes(worker)))
            case Effect.KILL if worker is not None:
                self._climb(worker, ladder.shortened(_held_bytes(worker)))
            case Effect.DESTROY if worker is not None:
                self._climb(worker, ladder.immediate())
            case _:
                raise AssertionError(f"{effect} without a worker")

    def _spawn(self) -> None:
        self._incarnation += 1
        if self._crashed:
            self.restarts += 1
            self._crashed = False
        try:
            self.worker = Worker(
                self._context,
                self._state_dir,
                self.log,
                self,
                model_number=self.model.number,
                incarnation=self._incarnation,
                python=self.model.settings.python,
            )
        except OSError as error:
            self.reason = f"no worker could be started: {error}"
            refusal = Refusal("model_unavailable", f"{self.model.id!r}: {self.reason}")
            asyncio.get_running_loop().call_soon(self._handle, Event.NOT_STARTED, refusal)

    async def _send_load(self) -> None:
        worker = self.worker
        if worker is None:
            return
        if self._grant_bytes is not None:
            await self._measure(worker)
        baseline_bytes = _held_bytes(worker) or 0
        if worker is self.worker and self.state is State.LOADING:
            worker.granted_bytes = self._grant_bytes
            worker.send(
                Load(
                    path=self.model.source,
                    max_concurrency=self.model.settings.max_concurrency,
                    context_tokens=self.model.settings.context_tokens,
                    grant_bytes=self._grant_bytes,
                    baseline_bytes=baseline_bytes,
                )
            )

    async def _measure(self, worker: Worker) -> None:
        try:
            worker.note_footprint(await asyncio.to_thread(footprint, worker.pid))
        except FootprintError as error:
            if not worker.ended.is_set():
                logger.warning("%s: footprint of worker %d: %s", self.model.id, worker.pid, error)
        self._notify()

    def _climb(self, worker: Worker, rungs: tuple[ladder.Rung, ...]) -> None:
        if self._ladder is not None:
            self._ladder.cancel()
        self._ladder = self._tasks.start(worker.climb(rungs), f"end worker {worker.pid}")
        self._ladder.add_done_callback(lambda _: self._notify())

    def _arm_deadline(self, seconds: float) -> None:
        self._disarm_deadline()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._deadline_passed)

    def _disarm_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _deadline_passed(self) -> None:
        self._deadline = None
        if self.state is State.DRAINING:
            self._cut_drain()
            return
        seconds = self._settings.workers.load_timeout_s
        self.reason = self._end_reason = (
            f"it was not loaded within {seconds:g} s (workers.load_timeout_s)"
        )
        self._handle(
            Event.DEADLINE,
            Refusal(
                "load_timeout",
                f"{self.model.id!r}: {self.reason}.",
                retry_after_s=_RETRY_AFTER_S,
            ),
        )

    def _cut_drain(self) -> None:
        if self.state is State.DRAINING:
            self._handle(
                Event.DEADLINE,
                Refusal(
                    "model_unavailable",
                    f"{self.model.id!r} was unloaded while it answered.",
                    retry_after_s=_RETRY_AFTER_S,
                ),
            )

    # Requests, inside

    def _dispatch(self) -> None:
        worker = self.worker
        if worker is None or self.state is not State.READY:
            return
        while (request := self.requests.start_next()) is not None:
            worker.send(request.generate)

    def _finished(self, request: Request) -> None:
        self.requests.remove(request)
        self.last_used_at = time.time()
        self._dispatch()
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _held_bytes(worker: Worker) -> int | None:
    return None if worker.footprint is None else worker.footprint.current_bytes
