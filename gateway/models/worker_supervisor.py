"""Supervises one worker of a model: dispatches its messages, connects, drains and ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from gateway.models.invalid_outputs import InvalidOutputs
from gateway.models.lifecycle import ImpossibleTransitionError, ModelEvent, State
from gateway.models.load import ModelLoad
from gateway.models.model_memory import GatewayParts, ModelParts
from gateway.models.recovery import Recovery
from gateway.requests import refusals
from gateway.requests.traffic import ProtocolBreachError, WorkerConnection
from gateway.system.child import ExitStatus
from gateway.system.log_lines import about
from gateway.system.memory_reading import FootprintError
from gateway.workers.shutdown_steps import ShutdownStep, TimedStep
from gateway.workers.worker import Listener, Worker
from protocol.answers import Costs, Embedded, Output, OutputInvalid, Rendered, RequestFailed
from protocol.life import (
    CacheProven,
    CacheQuarantined,
    Drain,
    Heartbeat,
    Hello,
    LoadFailed,
    LoadProgress,
    Moved,
    Need,
    PromptCacheCleared,
    RankLost,
    Ready,
)
from protocol.messages import WorkerMessage

logger = logging.getLogger(__name__)


class WorkerSupervisor:
    """Supervises one worker from its start to its end. The worker's messages on requests go to the
    traffic. Its messages on itself go to the load, the recovery, and the model's memory.
    """

    def __init__(
        self,
        parts: ModelParts,
        gateway: GatewayParts,
        load: ModelLoad,
        recovery: Recovery,
        invalid_outputs: InvalidOutputs,
        start: Callable[[Listener], Worker],
        ended: Callable[[], None],
    ) -> None:
        """Start the worker by a call of `start`. `ended` is called at the worker's end.

        Raises:
            OSError: the worker can't be started.
        """
        self._condition, self._traffic, self._model_memory, _, self._tasks, proof = parts
        self._cache_proof = proof
        self._events = gateway.events
        self._load = load
        self._recovery = recovery
        self._invalid_outputs = invalid_outputs
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._shutdown: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self.worker = start(self)
        self.worker.memory.granted_bytes = self._model_memory.granted_bytes

    @property
    def survived_kill(self) -> bool:
        """Whether the worker has survived its shutdown sequence."""
        return self._shutdown is not None and self._shutdown.done()

    # To the worker

    def order_load(self) -> None:
        """Measure the worker, and send it the order to load."""
        self._tasks.start(self._order_load(), "send load")

    async def _order_load(self) -> None:
        await self._measure()
        await self._load.send_order(self.worker)

    def connect(self) -> None:
        """Have the traffic send waiting requests to the worker."""
        if (connection := self._connection) is not None:
            self._traffic.connect(connection)

    def reconnect(self) -> None:
        """Go on with the requests that run in the worker of an earlier gateway."""
        self._model_memory.listens(self.worker)
        if (connection := self._connection) is not None:
            self._traffic.reconnect(connection)

    @property
    def _connection(self) -> WorkerConnection | None:
        """The connection by which the traffic sends requests; None: the model isn't loaded."""
        report = self.worker.report
        if report.fingerprint is None:
            return None
        return WorkerConnection(
            self.worker.send,
            report.fingerprint,
            self._model_memory.model.settings.context_tokens,
            report.abilities,
            report.sampling,
            report.address,
            self.worker.incarnation,
            report.prompts,
        )

    def drain(self) -> None:
        self._traffic.drain()
        self._tasks.start(self._drain(), "drain")

    async def _drain(self) -> None:
        # If no request runs, the worker's end follows at once: look for its descendants before.
        await self.worker.descendants.look()
        if not self.worker.ended.is_set() and self._condition.state is State.DRAINING:
            self.worker.send(Drain())

    def end(self, steps: Iterable[TimedStep]) -> None:
        """End the worker by this shutdown sequence, which replaces one that is under way."""
        if self._shutdown is not None:
            self._shutdown.cancel()
        self._shutdown = self._tasks.start(
            self.worker.shut_down(steps), f"end worker {self.worker.pid}"
        )
        self._shutdown.add_done_callback(lambda _: self._condition.notify())

    async def _measure(self) -> None:
        worker = self.worker
        try:
            if (reading := await worker.measure()) is not None:
                self._model_memory.record(worker, reading)
        except (FootprintError, OSError) as error:
            if not worker.ended.is_set():
                logger.warning(
                    "%s: footprint of worker %d: %s",
                    self._model_memory.model.id,
                    worker.pid,
                    error,
                    extra=about(model=self._model_memory.model.id, pid=worker.pid),
                )
        self._condition.notify()

    # From the worker

    def worker_sent(self, worker: Worker, message: WorkerMessage) -> None:
        """Dispatch a message of the worker: every kind of message has its case here."""
        if worker.ended.is_set():
            return  # The hello of an adopted spare may come after its end.
        progress = True
        try:
            match message:
                case Output():
                    worker.report.record_step(sum(len(delta.token_ids) for delta in message.deltas))
                    progress = self._traffic.output(message)
                case Heartbeat():
                    worker.report.record_heartbeat(message)
                    self._recovery.heard(step=message.step)
                    return
                case Embedded():
                    worker.report.record_step(message.tokens)
                    progress = self._traffic.embedded(message)
                case Rendered():
                    self._traffic.rendered(message)
                case RequestFailed():
                    self._traffic.failed(message)
                case OutputInvalid():
                    self._invalid_outputs.record(message, worker.pid)
                case Costs():
                    self._traffic.costs(message)
                    progress = False
                case Need():
                    worker.report.record_need(message)
                    self._record_need(message)
                    progress = False
                case Hello():
                    self._load.worker_connected(worker, message)
                case LoadProgress():
                    self._load.progressed(worker, message)
                case Ready():
                    worker.report.record_ready(message)
                    self._tasks.start(self._measure(), "first reading")
                    self._load.finish(worker, message)
                case LoadFailed():
                    self._load.fail(message)
                case PromptCacheCleared():
                    worker.record_cleared(message.reclaimed_bytes)
                    progress = False
                case CacheQuarantined():
                    self._cache_proof.record_quarantined(message)
                    self._report_quarantine(message)
                    progress = False
                case CacheProven():
                    self._cache_proof.record_proven(message)
                    progress = False
                case Moved():
                    worker.moved.set()
                    return
                case RankLost():
                    return
        except ImpossibleTransitionError as error:
            self.worker_misbehaved(worker, f"it broke the order of the protocol ({error})")
        except ProtocolBreachError as error:
            self.worker_misbehaved(worker, f"it broke the protocol: {error}")
        self._recovery.heard(progress=progress)

    def _report_quarantine(self, message: CacheQuarantined) -> None:
        self._events.emit(
            "cache_quarantined",
            self._model_memory.model.id,
            blocks=message.blocks,
            bytes=message.blocks_bytes,
            source=message.source,
            why=message.why,
        )

    def _record_need(self, need: Need) -> None:
        settings = self._model_memory.model.settings
        if need.rows and settings.max_concurrency is None:
            # While a picture is looked at, those of another request are decoded.
            self._traffic.allow(max(need.rows, 2) if settings.pictures else need.rows)
        gave_back = self.worker.memory.keeps_to(need.limit_bytes)
        self._model_memory.record_need(self.worker, need)
        if gave_back and (self._reading is None or self._reading.done()):
            # Other models may wait for these bytes: don't wait for the next reading.
            self._reading = self._tasks.start(self._measure(), "reading after a recall")

    def worker_misbehaved(self, worker: Worker, reason: str) -> None:
        self._recovery.end_misbehaving(worker, reason)

    def worker_outgrew(self, worker: Worker, reason: str) -> None:
        if self._condition.state is State.READY:
            self._recovery.log_error(worker, "is ended", reason)
            self._condition.handle(ModelEvent.OVERGROWN, reason)

    def worker_is_foreign(self, worker: Worker, reason: str) -> None:
        if self._condition.state not in (State.STARTING, State.STOPPING):
            self.worker_misbehaved(worker, f"it broke the protocol: {reason}")
            return
        self._recovery.log_error(worker, "is ended", reason)
        refusal = refusals.foreign_worker(self._model_memory.model.id, reason)
        self._condition.handle(ModelEvent.FOREIGN, refusal.message, refusal=refusal)

    def worker_outlived(self, worker: Worker, step: ShutdownStep, seconds: float) -> None:
        self._events.emit(
            "escalation",
            self._model_memory.model.id,
            pid=worker.pid,
            outlived=str(step),
            seconds=seconds,
        )

    def worker_ended(self, worker: Worker, status: ExitStatus) -> None:
        self._ended()
        self._recovery.worker_ended(worker, status)
