"""One model's compartment: its life cycle, its worker, and the requests that wait or run in it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from gateway.config.in_force import InForce
from gateway.config.sizes import format_size
from gateway.dispatch.refusal import Refusal
from gateway.dispatch.request import Request
from gateway.dispatch.traffic import Connection, ProtocolBreachError, Traffic
from gateway.events import EventLog
from gateway.logs.line import about
from gateway.memory.footprint import FootprintError, footprint
from gateway.memory.watch import Advice
from gateway.supervise import ladder, refusals
from gateway.supervise.hang import HangDetector
from gateway.supervise.last_exit import LastExit, last_exit
from gateway.supervise.lifecycle import (
    Circumstances,
    Effect,
    Event,
    ImpossibleTransitionError,
    Lifecycle,
    State,
    Verdict,
)
from gateway.supervise.model import Model
from gateway.supervise.process import ExitStatus
from gateway.supervise.recovery import Recovery
from gateway.supervise.starter import Starter
from gateway.supervise.steward import Steward
from gateway.supervise.tasks import Tasks
from gateway.supervise.tenancy import Tenancy
from gateway.supervise.worker import Worker
from gateway.supervise.worker_log import WorkerLog
from protocol.messages import (
    Drain,
    Heartbeat,
    Hello,
    Load,
    LoadFailed,
    LoadProgress,
    Output,
    Ready,
    Rendered,
    RequestFailed,
    Trim,
    WorkerMessage,
)

logger = logging.getLogger(__name__)

_RETRY_AFTER_S: Final = 5
_LOAD_TIMEOUTS: Final = 2
# Deaths by these are the worker's own; orders and shutdowns are not.
_BLAMED: Final = (Event.MISBEHAVED, Event.HUNG, Event.OVERGROWN, Event.EXIT)


class Compartment:
    """Feeds the life cycle with what happens, and performs the effects that it decides on.

    Everything runs on the event loop and nothing between two awaits can interleave, so a decision
    and its effects are one step.
    """

    def __init__(
        self,
        model: Model,
        in_force: InForce,
        steward: Steward,
        starter: Starter,
        log: WorkerLog,
        events: EventLog,
    ) -> None:
        self.model = model
        self.log = log
        self.traffic = Traffic(
            model.id,
            in_force.settings.queue.depth,
            model.settings.max_concurrency,
            model.settings.priority,
            events,
            self._notify,
            self._load_s,
            self._describe,
        )
        self.worker: Worker | None = None
        self.last_exit: LastExit | None = None
        self.restarts = 0
        self.reason: str | None = None
        self.failure: Refusal | None = None
        self._in_force = in_force
        self._steward = steward
        self._tenancy = Tenancy(model, self.traffic, steward, events)
        self._starter = starter
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._lifecycle = Lifecycle()
        self._recovery = Recovery(model.id, in_force, events, self._retry_now)
        self._hang: HangDetector | None = None
        self._tasks = Tasks(model.id)
        self._ladder: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._crashed = False
        self._convicted = False
        self._load_ordered = False
        self._load_timeouts = 0
        self._end_reason: str | None = None
        self._removed = False

    # What others ask

    @property
    def state(self) -> State:
        return self._lifecycle.state

    @property
    def priority(self) -> int:
        """The model's, or that of its most urgent request."""
        own = self.traffic.highest_priority
        return self.model.settings.priority if own is None else own

    @property
    def busy(self) -> bool:
        return self.traffic.waiting + self.traffic.running > 0

    @property
    def last_used(self) -> float:
        return self.traffic.last_used

    @property
    def reload_s(self) -> float:
        return self._tenancy.reload_s

    @property
    def removed(self) -> bool:
        """It isn't configured any more."""
        return self._removed

    @property
    def over(self) -> bool:
        """No process of it is left, and nobody asks for one."""
        return self.state in (State.UNLOADED, State.HELD, State.BACKOFF, State.FAILED)

    @property
    def waits_for_memory(self) -> bool:
        return self.state is State.WAITING

    @property
    def _coming(self) -> bool:
        """It is loaded, or will be without a request's asking for it."""
        return self._load_ordered or self.state in (
            State.WAITING,
            State.STARTING,
            State.LOADING,
            State.READY,
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a state of affairs. Whoever waits brings the deadline."""
        while not condition():
            await self._changed.wait()

    async def until_idle(self) -> None:
        await self.until(lambda: self.traffic.waiting + self.traffic.running == 0)

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
            Refusal: the queue is full, or this request has killed workers.
        """
        if not self.model.settings.on_request and not self._coming:
            raise refusals.operators_only(self.model.id, self.state)
        self.traffic.submit(request)
        self._handle(Event.DEMAND, self._unavailable())

    def tick(self, now: float, remind_after_s: float) -> None:
        """To be called a few times a second."""
        self.traffic.tick(now, remind_after_s)
        if self.state is State.WAITING and not self.busy and not self._kept:
            self._handle(Event.UNWANTED, self._unavailable())
        if self.state is State.DRAINING and self.traffic.running == 0:
            # From here on the worker has nothing to do but to release its memory.
            self._handle(Event.DRAINED, self._unavailable())
        if self.state is State.READY and not self.busy and self._tenancy.expired(now):
            self._end_reason = f"idle for {self._tenancy.idle_s(now):.0f} s"
            self._handle(Event.EXPIRED, self._unavailable())
        if self._hang is not None:
            reason = self._hang.judge(now, has_work=self.traffic.running > 0)
            if reason is not None and self.worker is not None:
                self._end_hung(self.worker, reason)

    # Memory

    def admitted(self, granted_bytes: int) -> None:
        """There is room for it, and so many bytes are its own."""
        self._tenancy.admitted(granted_bytes)
        self._handle(Event.ADMITTED, self._unavailable())

    def has_no_room(self, refusal: Refusal) -> None:
        """There never will be, as things are."""
        logger.warning("%s isn't loaded: %s", self.model.id, refusal.message)
        self.failure = refusal
        self._handle(Event.NO_ROOM, refusal)

    def evict(self, reason: str) -> None:
        """Another model needs its memory; who is cut off goes on later."""
        self._end_reason = reason
        self._handle(Event.EVICT, self._unavailable())

    def lost_memory(self, missing_bytes: int) -> None:
        """So much of what its last worker held did not come back: it isn't restarted any more
        by itself, since each restart may cost as much.
        """
        self._tenancy.lost_bytes = missing_bytes

    # The operator

    def load(self) -> None:
        self._forget_deaths()
        self._load_ordered = self.state is not State.READY
        self._handle(Event.LOAD, self._unavailable())

    def preload(self) -> None:
        """Load it without an operator's order."""
        self._handle(Event.LOAD, self._unavailable())

    def unload(self, *, hold: bool, force: bool) -> None:
        self._load_ordered = False
        # Requests that it leaves behind would load it again, which only an operator may.
        hold = hold or not self.model.settings.on_request
        self._handle(Event.HOLD if hold else Event.UNLOAD, refusals.held(self.model.id))
        if force:
            self._cut_drain()

    def restart(self, *, force: bool) -> None:
        self._forget_deaths()
        self._load_ordered = True
        self._handle(Event.RESTART, self._unavailable())
        if force:
            self._cut_drain()

    def kill(self, *, force: bool) -> None:
        self._load_ordered = False
        self._handle(Event.DESTROY if force else Event.KILL, self._unavailable())

    # The configuration

    def configure(self, model: Model) -> None:
        """Take the settings in force, and these of the model. What a worker is told only when it
        loads takes another worker: the present one is drained as for a restart.
        """
        same = self.model.same_for_workers(model)
        self.model = self._tenancy.model = model
        self.traffic.configure(
            self._in_force.settings.queue.depth,
            model.settings.max_concurrency,
            model.settings.priority,
        )
        if self._hang is not None:
            workers = self._in_force.settings.workers
            self._hang.set_timeouts(workers.heartbeat_timeout_s, workers.stall_timeout_s)
        self._steward.pin(self)
        if self._removed:
            # It was on its way out, and is wanted again.
            self._removed = False
            self.restart(force=False)
        elif not same:
            self._take_another_worker()
        if self._kept and self.state is State.UNLOADED:
            self.preload()

    def _take_another_worker(self) -> None:
        self._forget_deaths()
        if self._lifecycle.alive:
            self._end_reason = "its settings changed"
            self._handle(Event.RESTART, self._unavailable())
        elif self.state is State.WAITING:
            self._steward.withdraw(self.model.id)
            self._steward.ask(self)
        elif self.state in (State.BACKOFF, State.FAILED):
            # What was wrong may have been mended.
            self.failure = None
            wanted = self._kept or self.busy
            self._handle(Event.LOAD if wanted else Event.UNLOAD, self._unavailable())

    def remove(self) -> None:
        """It isn't configured any more: nothing new, what runs may finish within the drain time."""
        self._removed = True
        self._load_ordered = False
        self._end_reason = self._end_reason or "it was taken out of the configuration"
        self._handle(Event.HOLD, self._unavailable())

    def end(self) -> None:
        """For the gateway's own end: no drain, the polite ladder, and no start after it."""
        self.unload(hold=True, force=True)

    async def close(self) -> None:
        self._disarm_deadline()
        self._recovery.disarm()
        await self._tasks.cancel_all()
        self.log.close()

    # The worker

    def worker_said(self, worker: Worker, message: WorkerMessage) -> None:
        if worker is not self.worker:
            return
        now = self._loop.time()
        progress = True
        try:
            match message:
                case Output():
                    progress = self.traffic.output(message)
                case Rendered():
                    self.traffic.rendered(message)
                case RequestFailed():
                    self.traffic.failed(message)
                case LoadProgress(loaded_bytes=done, total_bytes=total):
                    self.reason = f"loading: {format_size(done)} of {format_size(total)}"
                    self._check_weights(worker, total)
                case Hello() | Ready() | LoadFailed():
                    self._advance(worker, message)
                case Heartbeat(step=step):
                    progress = False
                    if self._hang is not None:
                        self._hang.stepped(now, step)
        except ImpossibleTransitionError as error:
            self.worker_misbehaved(worker, f"it broke the order of the protocol ({error})")
        except ProtocolBreachError as error:
            self.worker_misbehaved(worker, f"it broke the protocol: {error}")
        if self._hang is not None:
            if progress:
                self._hang.progressed(now)
            else:
                self._hang.heard(now)

    def worker_misbehaved(self, worker: Worker, reason: str) -> None:
        if worker is not self.worker:
            return
        logger.error(
            "%s: worker %d is ended: %s",
            self.model.id,
            worker.pid,
            reason,
            extra=about(model=self.model.id, pid=worker.pid),
        )
        self._end_reason = self._end_reason or reason
        self._handle(Event.MISBEHAVED, self._unavailable())

    def worker_outlived(self, worker: Worker, step: ladder.Step, seconds: float) -> None:
        self._events.emit(
            "escalation", self.model.id, pid=worker.pid, outlived=str(step), seconds=seconds
        )

    def worker_ended(self, worker: Worker, status: ExitStatus) -> None:
        if worker is not self.worker:
            return
        ordered = not self._lifecycle.judged
        expected = ordered and (self.state is State.STOPPING or status.code == 0)
        reason = self._end_reason or (
            "stopped as asked" if expected else f"ended unexpectedly while {self.state}"
        )
        self._end_reason = None
        self.last_exit = last_exit(status, reason, self.log)
        self._events.emit(
            "exit",
            self.model.id,
            pid=worker.pid,
            incarnation=worker.incarnation,
            expected=expected,
            code=status.code,
            signal=status.signal,
            reason=reason,
        )
        self.worker = None
        self._steward.gone(self.model.id, _held_bytes(worker) or 0)
        self._crashed = self._crashed or not ordered
        if ordered:
            self._handle(Event.EXIT, self._unavailable())
            return
        self._judge(reason, str(status), self.last_exit.log_tail, Event.EXIT)

    def _judge(self, reason: str, status: str, tail: list[str], event: Event) -> None:
        """Do what the policy says of a death that nobody ordered."""
        if self._tenancy.lost_bytes:
            reason += f" (an earlier end has stranded {format_size(self._tenancy.lost_bytes)})"
            ruling = self._recovery.given_up()
        elif event is Event.EXIT and (self._convicted or self.traffic.guilty):
            ruling = self._recovery.excused()
        else:
            ruling = self._recovery.died()
        self.reason = refusals.lost(
            self.model.id, reason, status, tail, ruling.deaths, ruling.next_attempt_s
        )
        refusal = Refusal(
            "model_unavailable",
            f"{self.model.id!r} can't be served: {self.reason}",
            retry_after_s=self._recovery.retry_after_s,
        )
        self._handle(event, refusal, ruling.verdict)

    def _advance(self, worker: Worker, message: Hello | Ready | LoadFailed) -> None:
        match message:
            case Hello(incarnation=incarnation) if incarnation != worker.incarnation:
                self.worker_misbehaved(worker, f"it says it is incarnation {incarnation}")
            case Hello():
                self._handle(Event.HELLO, self._unavailable())
            case Ready() as ready:
                # A reading from before the load says nothing any more.
                worker.footprint = None
                worker.fingerprint = ready.fingerprint
                self._tenancy.reload_s = time.time() - worker.started_at
                self._tasks.start(self._measure(worker), "first reading")
                self._handle(Event.LOADED, self._unavailable())
                self._events.emit(
                    "ready",
                    self.model.id,
                    pid=worker.pid,
                    incarnation=worker.incarnation,
                    load_s=ready.load_s,
                )
            case LoadFailed(reason=reason, permanent=permanent):
                self.reason = self._end_reason = reason
                self._handle(
                    Event.LOAD_IMPOSSIBLE if permanent else Event.LOAD_FAILED,
                    refusals.load_failed(
                        self.model.id, reason, retry_after_s=None if permanent else self._load_s()
                    ),
                )

    def _end_hung(self, worker: Worker, reason: str) -> None:
        logger.error(
            "%s: worker %d hangs: %s",
            self.model.id,
            worker.pid,
            reason,
            extra=about(model=self.model.id, pid=worker.pid),
        )
        self._events.emit("hang", self.model.id, pid=worker.pid, reason=reason)
        self._end_reason = reason
        self._handle(Event.HUNG, self._unavailable())

    def _unavailable(self) -> Refusal:
        """Why a request can't be served in the present state."""
        if self._removed:
            return refusals.removed(self.model.id)
        if self._lifecycle.holds:
            return refusals.held(self.model.id)
        retry_after_s = self._recovery.retry_after_s
        if retry_after_s is None and self.state is not State.FAILED:
            retry_after_s = self._load_s()
        return refusals.unavailable(
            self.model.id, self.state, self.reason, retry_after_s=retry_after_s
        )

    def _describe(self) -> str:
        return f"is {self.state}: {self.reason}" if self.reason else f"is {self.state}"

    def _check_weights(self, worker: Worker, weight_bytes: int) -> None:
        """The files may not be those any more that the grant was estimated from."""
        if worker.granted_bytes is not None and weight_bytes > worker.granted_bytes:
            self.worker_misbehaved(
                worker,
                f"its weights are {format_size(weight_bytes)} and it was granted "
                f"{format_size(worker.granted_bytes)}: its files have changed",
            )

    def _load_s(self) -> int:
        """How long a load takes, by the last one."""
        return max(_RETRY_AFTER_S, round(self._tenancy.reload_s))

    # The life cycle

    def _handle(self, event: Event, refusal: Refusal, verdict: Verdict = Verdict.RESTART) -> None:
        """`refusal` is what requests are told that end by this event."""
        before = self.state
        effects = self._lifecycle.handle(
            event,
            Circumstances(
                requests_wait=self._somebody_waits(event),
                kept=self._kept,
                verdict=verdict,
            ),
        )
        if self.state is not before:
            self._entered(before, refusal)
            self._events.emit(
                "state",
                self.model.id,
                before=str(before),
                after=str(self.state),
                cause=str(event),
                reason=self.reason,
            )
        for effect in effects:
            self._perform(effect, refusal, blame=event in _BLAMED)
        self._notify()

    def _somebody_waits(self, event: Event) -> bool:
        """Whether a request wants a worker after this event."""
        guilty = self.traffic.guilty if event in _BLAMED and self._lifecycle.judged else 0
        return self.traffic.waiting + self.traffic.running > guilty

    @property
    def _kept(self) -> bool:
        settings = self.model.settings
        return self._load_ordered or settings.pinned or settings.preload

    def _entered(self, before: State, refusal: Refusal) -> None:
        if self.state is not State.LOADING:
            self._disarm_deadline()
        self._hang = self._hang if self.state is State.DRAINING else None
        if self.state not in (State.BACKOFF, State.FAILED):
            self._recovery.disarm()
        match self.state:
            case State.WAITING:
                self.reason = self.failure = None
            case State.STARTING:
                self.reason = None
                self._arm_deadline(self._in_force.settings.workers.load_timeout_s)
            case State.READY:
                self.reason = None
                self._load_ordered = False
                self._load_timeouts = 0
                self._steward.ready(self)
                now = self._tenancy.ready_at = self._loop.time()
                self._recovery.ready()
                self._hang = HangDetector(
                    now,
                    self._in_force.settings.workers.heartbeat_timeout_s,
                    self._in_force.settings.workers.stall_timeout_s,
                )
            case State.DRAINING:
                self.reason = self._end_reason
                self._steward.ending(self.model.id)
                self._arm_deadline(self._in_force.settings.gateway.drain_s)
            case State.STOPPING:
                self.reason = self.reason or self._end_reason
                self._steward.ending(self.model.id)
            case State.BACKOFF | State.FAILED | State.HELD:
                self._load_ordered = False
                self.failure = self.failure or refusal
                self.reason = self.reason or refusal.message
            case State.UNLOADED if before is State.WAITING:
                self._load_ordered = False
                self.reason = None if self.failure is None else self.failure.message
            case State.UNLOADED if before is State.FAILED:
                self.reason = None
            case _:
                pass

    def _perform(self, effect: Effect, refusal: Refusal, *, blame: bool) -> None:
        worker = self.worker
        match effect:
            case Effect.ASK:
                self._steward.ask(self)
            case Effect.WITHDRAW:
                self._steward.withdraw(self.model.id)
            case Effect.SPAWN:
                self._spawn()
            case Effect.PARK_RUNNING:
                self._convicted = self.traffic.park(blame=blame)
            case Effect.REFUSE_WAITING:
                self.failure = self.failure or refusal
                self.traffic.refuse_waiting(refusal)
            case _ if worker is None:
                raise AssertionError(f"{effect} without a worker")
            case Effect.SEND_LOAD:
                self._tasks.start(self._send_load(worker), "send load")
            case Effect.DISPATCH:
                self._dispatch(worker)
            case Effect.DRAIN:
                self.traffic.drain()
                self._tasks.start(self._drain(worker), "drain")
            case Effect.STOP:
                self._climb(worker, ladder.polite(_held_bytes(worker)))
            case Effect.KILL:
                self._climb(worker, ladder.shortened(_held_bytes(worker)))
            case Effect.DESTROY:
                self._climb(worker, ladder.immediate())
            case Effect.DUMP_AND_DESTROY:
                self._climb(worker, ladder.hung())

    def _spawn(self) -> None:
        self._convicted = False
        if self._crashed:
            self.restarts += 1
            self._crashed = False
        try:
            self.worker = self._starter.start(self.model, self.log, self)
            self.worker.granted_bytes = self._tenancy.granted_bytes
        except (FileNotFoundError, PermissionError) as error:
            self._steward.gone(self.model.id, 0)
            self.reason = f"no worker can be started: {error}"
            refusal = Refusal(
                "model_unavailable", f"{self.model.id!r}: {self.reason}", lasting=True
            )
            self._handle(Event.NOT_STARTED, refusal)
        except OSError as error:
            # Descriptors, processes or memory may be there later.
            self._steward.gone(self.model.id, 0)
            self._crashed = True
            logger.error(
                "%s: no worker could be started: %s",
                self.model.id,
                error,
                extra=about(model=self.model.id),
            )
            self._judge("it could not be started", str(error), [], Event.START_FAILED)

    def _dispatch(self, worker: Worker) -> None:
        if worker.fingerprint is None:
            return
        self.traffic.connect(
            Connection(worker.send, worker.fingerprint, self.model.settings.context_tokens)
        )

    async def _send_load(self, worker: Worker) -> None:
        await self._measure(worker)
        baseline_bytes = _held_bytes(worker) or 0
        if worker is self.worker and self.state is State.LOADING:
            worker.send(
                Load(
                    path=self.model.source,
                    max_concurrency=self.model.settings.max_concurrency,
                    context_tokens=self.model.settings.context_tokens,
                    grant_bytes=worker.granted_bytes,
                    baseline_bytes=baseline_bytes,
                    working_bytes=self._steward.working_bytes(self.model.id),
                )
            )

    async def _drain(self, worker: Worker) -> None:
        # Its end follows at once if nothing runs.
        await worker.look_for_descendants()
        if worker is self.worker and self.state is State.DRAINING:
            worker.send(Drain())

    async def _measure(self, worker: Worker) -> None:
        try:
            worker.note_footprint(await asyncio.to_thread(footprint, worker.pid))
            self.note_footprint(worker)
        except FootprintError as error:
            if not worker.ended.is_set():
                logger.warning(
                    "%s: footprint of worker %d: %s",
                    self.model.id,
                    worker.pid,
                    error,
                    extra=about(model=self.model.id, pid=worker.pid),
                )
        self._notify()

    def _climb(self, worker: Worker, rungs: tuple[ladder.Rung, ...]) -> None:
        if self._ladder is not None:
            self._ladder.cancel()
        self._ladder = self._tasks.start(worker.climb(rungs), f"end worker {worker.pid}")
        self._ladder.add_done_callback(lambda _: self._notify())

    def note_footprint(self, worker: Worker) -> None:
        """Its worker was measured."""
        if worker is not self.worker or worker.footprint is None:
            return
        footprint_bytes = worker.footprint.current_bytes
        self._steward.note_footprint(self.model.id, footprint_bytes)
        if self.state is not State.READY:
            return
        match self._tenancy.judge(worker, footprint_bytes, self._loop.time()):
            case Advice.TRIM:
                worker.send(Trim())
            case Advice.REPLACE:
                self._end_reason = (
                    f"it holds {format_size(footprint_bytes)} and was granted "
                    f"{format_size(self._tenancy.granted_bytes or 0)}"
                )
                self._handle(Event.OVERGROWN, self._unavailable())

    # Time

    def _arm_deadline(self, seconds: float) -> None:
        self._deadline = self._loop.call_later(seconds, self._deadline_passed)

    def _disarm_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _retry_now(self) -> None:
        self._handle(Event.RETRY, self._unavailable())

    def _deadline_passed(self) -> None:
        self._deadline = None
        if self.state is State.DRAINING:
            self._cut_drain()
            return
        self._load_timeouts += 1
        again = self._load_timeouts >= _LOAD_TIMEOUTS
        seconds = self._in_force.settings.workers.load_timeout_s
        self._end_reason = f"it was not loaded within {seconds:g} s (workers.load_timeout_s)"
        if again:
            self.reason = f"{self._end_reason}, twice"
        self._handle(
            Event.TOO_SLOW if again else Event.DEADLINE,
            refusals.load_too_slow(self.model.id, self._end_reason),
        )

    def _cut_drain(self) -> None:
        if self.state is State.DRAINING:
            self._handle(Event.DEADLINE, self._unavailable())

    def _forget_deaths(self) -> None:
        self._recovery.forget()
        self._tenancy.lost_bytes = 0
        self.traffic.forget_deaths()
        self._load_timeouts = 0

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _held_bytes(worker: Worker) -> int | None:
    return None if worker.footprint is None else worker.footprint.current_bytes
