"""Supervises the worker of a model: takes its messages, gives it orders, notices when it hangs."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from typing import Final

from gateway.config.model import Model
from gateway.config.model_folders import expand_home
from gateway.models.lifecycle import ImpossibleTransitionError, ModelEvent, State
from gateway.models.model_memory import GatewayParts, ModelParts
from gateway.requests import refusals
from gateway.requests.traffic import ProtocolBreachError, WorkerConnection
from gateway.system.log_lines import about
from gateway.system.memory_reading import FootprintError
from gateway.system.notation import format_size
from gateway.workers.host import THIS_MACHINE
from gateway.workers.ladder import LadderStep, Rung
from gateway.workers.process import ExitStatus
from gateway.workers.verdicts import HangDetector
from gateway.workers.worker import Listener, Worker
from protocol.answers import Costs, Embedded, Output, Rendered, RequestFailed
from protocol.life import (
    Drain,
    Heartbeat,
    Hello,
    Load,
    LoadFailed,
    LoadProgress,
    Need,
    PromptCacheCleared,
    Ready,
    RunCommand,
)
from protocol.messages import WorkerMessage

logger = logging.getLogger(__name__)

# A guard asks its server every two seconds.
_LEAST_STALL_S: Final = 5.0


class WorkerSupervisor:
    """Supervises one worker from its start to its end. The worker's messages on requests go to the
    traffic. Its messages on itself become events of the life cycle.
    """

    def __init__(
        self,
        model: Model,
        parts: ModelParts,
        gateway: GatewayParts,
        start: Callable[[Listener], Worker],
        ended: Callable[[Worker, ExitStatus], None],
    ) -> None:
        """Start the worker by a call of `start`. `ended` is called at the worker's end.

        Raises:
            OSError: the worker can't be started.
        """
        self._model = model
        self._condition, self._traffic, self._model_memory, _, self._tasks = parts
        self._in_force = gateway.in_force
        self._events = gateway.events
        self._prompt_cache = gateway.prompt_cache
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._hang: HangDetector | None = None
        self._ladder: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self.worker = start(self)
        self.worker.memory.granted_bytes = self._model_memory.granted_bytes

    @property
    def given_up(self) -> bool:
        """Whether the worker has survived its stop ladder."""
        return self._ladder is not None and self._ladder.done()

    def entered(self) -> None:
        """Begin or end the watch for hangs, as the entered state says. A worker sends heartbeats
        from its hello on. Once its model is ready it makes steps whenever there is work.
        """
        match self._condition.state:
            case State.LOADING | State.READY:
                self._hang = HangDetector(self._loop.time(), *self._timeouts_s)
            case State.DRAINING:
                pass
            case _:
                self._hang = None

    def configure(self) -> None:
        """Have the watch for hangs use the timeouts in force."""
        if self._hang is not None:
            self._hang.set_timeouts(*self._timeouts_s)

    @property
    def _timeouts_s(self) -> tuple[float, float]:
        """The timeouts of heartbeats and of steps, in seconds. The server of a command may be
        silent for longer while it answers.
        """
        workers = self._in_force.settings.workers
        stall_s = workers.stall_timeout_s
        if self._condition.state is State.LOADING:
            stall_s = math.inf
        elif self._model.is_command:
            silence_s = self._model.settings.silence_s if self._traffic.queue.running else 0.0
            stall_s = max(stall_s, _LEAST_STALL_S, silence_s)
        return workers.heartbeat_timeout_s, stall_s

    def tick(self, now: float) -> None:
        """End the worker if it hangs. To be called a few times a second."""
        if self._hang is None:
            return
        # Requests that wait for memory make no steps.
        has_work = self._traffic.queue.running > self.worker.report.short_of_memory
        if self._model.is_command:
            # Its steps are its answers on the health path.
            self._hang.set_timeouts(*self._timeouts_s)
            has_work = True
        reason = self._hang.judge(now, has_work=has_work)
        if reason is not None:
            if self.worker.followers is not None:
                # Rank 0 may have ended already, while another rank still has to end.
                loss = self.worker.loss
                reason = f"rank 0 on {THIS_MACHINE}: {reason}" if loss is None else loss.reason
            self._log_error("hangs", reason)
            self._events.emit("hang", self._model.id, pid=self.worker.pid, reason=reason)
            self._condition.handle(ModelEvent.HUNG, reason)

    # To the worker

    def load(self) -> None:
        self._tasks.start(self._load(), "send load")

    def connect(self) -> None:
        """Have the traffic send waiting requests to the worker."""
        if (connection := self._connection) is not None:
            self._traffic.connect(connection)

    @property
    def _connection(self) -> WorkerConnection | None:
        """The connection by which the traffic sends requests; None: the model isn't loaded."""
        said = self.worker.report
        if said.fingerprint is None:
            return None
        return WorkerConnection(
            self.worker.send,
            said.fingerprint,
            self._model.settings.context_tokens,
            said.abilities,
            said.sampling,
            said.address,
        )

    def settle(self) -> None:
        """Go on with the worker of an earlier gateway, and the requests that run in it."""
        if (connection := self._connection) is not None:
            self._traffic.reconnect(connection)

    def drain(self) -> None:
        self._traffic.drain()
        self._tasks.start(self._drain(), "drain")

    def end(self, rungs: Iterable[Rung]) -> None:
        """End the worker by this ladder, which replaces a ladder that is under way."""
        if self._ladder is not None:
            self._ladder.cancel()
        self._ladder = self._tasks.start(self.worker.climb(rungs), f"end worker {self.worker.pid}")
        self._ladder.add_done_callback(lambda _: self._condition.notify())

    async def _load(self) -> None:
        await self._measure()
        followers = self.worker.followers
        ranks = None if followers is None else await followers.until_started()
        if not self._still(State.LOADING) or (followers is not None and ranks is None):
            return
        worker, estimated = self.worker, self._model_memory.estimate
        if self._model.is_command:
            settings = self._model.settings
            program = self._model.source
            worker.send(
                RunCommand(
                    command=(program, *settings.command[1:]),
                    environment=settings.environment,
                    folder=str(expand_home(settings.folder or "~")),
                    health=settings.health,
                )
            )
            return
        worker.memory.baseline_bytes = worker.memory.held_bytes or 0
        self._model_memory.started(worker)
        worker.send(
            Load(
                path=self._model.source,
                max_concurrency=self._model.settings.max_concurrency,
                context_tokens=self._model.settings.context_tokens,
                limit_bytes=worker.memory.granted_bytes,
                beside_bytes=worker.memory.tell_beside(),
                working_bytes=0 if estimated is None else estimated.working_bytes,
                working_token_bytes=0 if estimated is None else estimated.working_token_bytes,
                wire=self._in_force.settings.memory.wire_weights,
                model_id=self._model.id,
                stall_s=self._in_force.settings.workers.prefill_stall_s,
                prompt_cache=self._prompt_cache,
                kv_bits=self._model.settings.kv_bits,
                adapter_path=self._model.adapter,
                draft_path=self._model.draft,
                draft_tokens=self._model.settings.draft_tokens,
                guesses=self._model.settings.guesses,
                bound=self._model_memory.tell_bound(),
                pictures=self._model.settings.pictures,
                ranks=ranks,
                awaited=self._traffic.queue.waiting > 0,
            )
        )

    async def _drain(self) -> None:
        # If no request runs, the worker's end follows at once: look for its descendants before.
        await self.worker.descendants.look()
        if self._still(State.DRAINING):
            self.worker.send(Drain())

    async def _measure(self) -> None:
        worker = self.worker
        try:
            await worker.measure()
            self._model_memory.measured(worker)
        except (FootprintError, OSError) as error:
            if not worker.ended.is_set():
                logger.warning(
                    "%s: footprint of worker %d: %s",
                    self._model.id,
                    worker.pid,
                    error,
                    extra=about(model=self._model.id, pid=worker.pid),
                )
        self._condition.notify()

    def _still(self, state: State) -> bool:
        """Whether the worker hasn't ended, and the model is in this state."""
        return not self.worker.ended.is_set() and self._condition.state is state

    # From the worker

    def worker_said(self, worker: Worker, message: WorkerMessage) -> None:
        if worker.ended.is_set():
            return  # The hello of an adopted spare may come after its end.
        now = self._loop.time()
        progress = True
        try:
            match message:
                case Output():
                    progress = self._traffic.output(message)
                case Embedded():
                    progress = self._traffic.embedded(message)
                case Rendered():
                    self._traffic.rendered(message)
                case RequestFailed():
                    self._traffic.failed(message)
                case Costs():
                    progress = False
                    self._traffic.costs(message)
                case LoadProgress(loaded_bytes=done, total_bytes=total):
                    self._condition.progress(
                        f"loading: {format_size(done)} of {format_size(total)}"
                        if done < total
                        else f"loading: {format_size(total)} are read, kernels are compiled"
                    )
                    self._check_weights(worker, total)
                case Hello() | Ready() | LoadFailed():
                    self._advance(worker, message)
                case PromptCacheCleared():
                    progress = False
                case Need(limit_bytes=limit_bytes, rows=rows):
                    progress = False
                    settings = self._model.settings
                    if rows and settings.max_concurrency is None:
                        # While a picture is looked at, those of another request are decoded.
                        self._traffic.allow(max(rows, 2) if settings.pictures else rows)
                    gave = worker.memory.keeps_to(limit_bytes)
                    self._model_memory.needs(worker, message)
                    if gave and (self._reading is None or self._reading.done()):
                        # Other models may wait for these bytes: don't wait for the next reading.
                        self._reading = self._tasks.start(self._measure(), "reading after a recall")
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
        self._log_error("is ended", reason)
        self._condition.handle(ModelEvent.MISBEHAVED, reason)

    def worker_outgrew(self, worker: Worker, reason: str) -> None:
        if self._condition.state is State.READY:
            self._log_error("is ended", reason)
            self._condition.handle(ModelEvent.OVERGROWN, reason)

    def worker_is_foreign(self, worker: Worker, reason: str) -> None:
        if self._condition.state not in (State.STARTING, State.STOPPING):
            self.worker_misbehaved(worker, f"it broke the protocol: {reason}")
            return
        self._log_error("is ended", reason)
        refusal = refusals.foreign_worker(self._model.id, reason)
        self._condition.handle(ModelEvent.FOREIGN, refusal.message, refusal=refusal)

    def worker_outlived(self, worker: Worker, step: LadderStep, seconds: float) -> None:
        self._events.emit(
            "escalation", self._model.id, pid=worker.pid, outlived=str(step), seconds=seconds
        )

    def worker_ended(self, worker: Worker, status: ExitStatus) -> None:
        self._ended(worker, status)

    def _advance(self, worker: Worker, message: Hello | Ready | LoadFailed) -> None:
        match message:
            case Hello(incarnation=incarnation) if incarnation != worker.incarnation:
                self.worker_misbehaved(worker, f"it says it is incarnation {incarnation}")
            case Hello():
                self._condition.handle(ModelEvent.HELLO)
            case Ready() as ready:
                self._model_memory.reload_s = self._loop.time() - self._began_at
                self._traffic.meter.load_s.observe(self._model_memory.reload_s)
                self._tasks.start(self._measure(), "first reading")
                self._condition.handle(ModelEvent.LOADED)
                self._events.emit(
                    "ready",
                    self._model.id,
                    pid=worker.pid,
                    incarnation=worker.incarnation,
                    load_s=ready.load_s,
                )
            case LoadFailed(reason=reason, permanent=permanent):
                self._condition.handle(
                    ModelEvent.LOAD_IMPOSSIBLE if permanent else ModelEvent.LOAD_FAILED,
                    reason,
                    refusal=refusals.load_failed(
                        self._model.id,
                        reason,
                        retry_after_s=None if permanent else self._model_memory.load_s,
                    ),
                )

    def _check_weights(self, worker: Worker, weight_bytes: int) -> None:
        """End the worker if its weights are larger than its granted memory: the files have changed
        since they were estimated.
        """
        if worker.memory.granted_bytes is not None and weight_bytes > worker.memory.granted_bytes:
            self.worker_misbehaved(
                worker,
                f"its weights are {format_size(weight_bytes)} and it was granted "
                f"{format_size(worker.memory.granted_bytes)}: its files have changed",
            )

    def _log_error(self, what: str, reason: str) -> None:
        pid = self.worker.pid
        logger.error(
            "%s: worker %d %s: %s",
            self._model.id,
            pid,
            what,
            reason,
            extra=about(model=self._model.id, pid=pid),
        )
