"""Performs the effects of a model's life cycle: asks for memory, starts and ends the worker, and
has requests sent, parked or refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.config.model import Model
from gateway.models.condition import Condition
from gateway.models.lifecycle import Circumstances, Effect, ModelEvent, State
from gateway.models.model_memory import GatewayParts, ModelMemory, ModelParts
from gateway.models.recovery import Deadlines, Recovery
from gateway.models.supervisor import WorkerSupervisor
from gateway.requests import refusals
from gateway.requests.traffic import QueueBounds, Traffic
from gateway.system.child import ExitStatus
from gateway.system.refusal import Refusal
from gateway.system.tasks import Tasks
from gateway.workers import shutdown_steps
from gateway.workers.restart_policy import RestartAction
from gateway.workers.worker import Listener, Worker
from gateway.workers.worker_log import WorkerLog

# Requests that run at once before the worker says whether its model with pictures takes several.
_FIRST_WITH_PICTURES: Final = 2
# Requests that run at once before the worker says how many make its batch faster.
_FIRST_CONCURRENCY: Final = 32
# An end by one of these events is a death, for which a request may be to blame.
_BLAMED: Final = (ModelEvent.MISBEHAVED, ModelEvent.HUNG, ModelEvent.EXIT)


class Performer:
    """Performs the effects for one model, and knows the circumstances of decisions on the model.

    `load_ordered`: an operator or the configuration wants the model loaded, and it isn't loaded
    yet.
    """

    def __init__(self, model: Model, log: WorkerLog, gateway: GatewayParts) -> None:
        self.model = model
        self.load_ordered = False
        self.supervisor: WorkerSupervisor | None = None
        condition = Condition(model.id, gateway.events, self)
        traffic = Traffic(model.id, self._bounds(gateway), self, gateway.events)
        model_memory = ModelMemory(model, condition, traffic, gateway.scheduler, lambda: self.kept)
        self.parts = ModelParts(condition, traffic, model_memory, log, Tasks(model.id))
        self.recovery = Recovery(model.id, self.parts, gateway)
        self.deadlines = Deadlines(model.id, gateway.in_force, condition)
        self._gateway = gateway

    @property
    def kept(self) -> bool:
        """Whether the model is to be loaded even without requests."""
        settings = self.model.settings
        return self.load_ordered or settings.pinned or settings.preload

    def configure(self, model: Model) -> None:
        """Take the gateway's settings in force, and `model` with its new settings."""
        self.model = model
        self.parts.traffic.configure(self._bounds(self._gateway))
        if self.supervisor is not None:
            self.supervisor.configure()
        self.parts.model_memory.configure(model)

    def supervise(self, start: Callable[[Listener], Worker]) -> WorkerSupervisor:
        """Start or adopt a worker, by a call of `start`. Raises: all that `start` raises."""
        self.supervisor = WorkerSupervisor(
            self.model, self.parts, self._gateway, start, self._worker_ended
        )
        return self.supervisor

    # For the traffic

    @property
    def load_s(self) -> int:
        return self.parts.model_memory.load_s

    @property
    def short_of_memory(self) -> bool:
        return self.supervisor is not None and self.supervisor.worker.report.short_of_memory > 0

    def notify(self) -> None:
        self.parts.condition.notify()

    def describe(self) -> str:
        return self.parts.condition.describe()

    # For the life cycle

    def circumstances(self, event: ModelEvent, verdict: RestartAction) -> Circumstances:
        traffic = self.parts.traffic
        judged = self.parts.condition.lifecycle.judged
        guilty = traffic.queue.guilty if event in _BLAMED and judged else 0
        return Circumstances(
            requests_wait=traffic.queue.waiting + traffic.queue.running > guilty,
            kept=self.kept or self.parts.model_memory.wanted_along,
            verdict=verdict,
        )

    def unavailable(self) -> Refusal:
        condition = self.parts.condition
        retry_after_s = self.recovery.retry_after_s
        if retry_after_s is None and condition.state is not State.FAILED:
            retry_after_s = self.load_s
        return refusals.unavailable(
            self.model.id, condition.state, condition.reason, retry_after_s=retry_after_s
        )

    def entered(self, before: State) -> None:
        self.deadlines.entered()
        self.recovery.entered()
        self.parts.model_memory.entered()
        if self.supervisor is not None:
            self.supervisor.entered()
            self.recovery.deaths.loaded(self.supervisor.worker.report.fingerprint)
        match self.parts.condition.state:
            case State.READY | State.BACKOFF | State.FAILED | State.HELD:
                self.load_ordered = False
            case State.UNLOADED if before is State.WAITING:
                self.load_ordered = False
            case _:
                pass

    def perform(self, effect: Effect, event: ModelEvent, refusal: Refusal) -> None:
        supervisor = self.supervisor
        match effect:
            case Effect.ASK:
                self.parts.model_memory.ask()
            case Effect.WITHDRAW:
                self.parts.model_memory.withdraw()
            case Effect.SPAWN:
                self._spawn()
            case Effect.PARK_RUNNING:
                if self.parts.traffic.park(blame=event in _BLAMED):
                    self.recovery.excuse()
            case Effect.REFUSE_WAITING:
                self.parts.traffic.refuse_waiting(refusal)
            case _ if supervisor is None:
                raise AssertionError(f"{effect} without a worker")
            case Effect.SEND_LOAD:
                supervisor.load()
            case Effect.DISPATCH:
                supervisor.connect()
            case Effect.DRAIN:
                supervisor.drain()
            case Effect.STOP:
                supervisor.end(shutdown_steps.polite(supervisor.worker.memory.held_bytes))
            case Effect.KILL:
                supervisor.end(shutdown_steps.shortened(supervisor.worker.memory.held_bytes))
            case Effect.DESTROY:
                supervisor.end(shutdown_steps.immediate())
            case Effect.DUMP_AND_DESTROY:
                supervisor.end(shutdown_steps.hung(supervisor.worker.memory.held_bytes))

    # Inside

    def _spawn(self) -> None:
        self.recovery.starting()
        try:
            self.supervise(
                lambda supervisor: self._gateway.starter.start(
                    self.model, self.parts.log, supervisor, self.parts.model_memory.estimate
                )
            )
        except Exception as error:
            # Every error is caught: without a worker no event would end the state STARTING.
            self.recovery.not_started(error)

    def _worker_ended(self, worker: Worker, status: ExitStatus) -> None:
        self.supervisor = None
        self.recovery.ended(worker, status)

    def _bounds(self, gateway: GatewayParts) -> QueueBounds:
        own = self.model.settings
        told = 0 if self.supervisor is None else self.supervisor.worker.report.rows
        concurrency = own.max_concurrency or told or _FIRST_CONCURRENCY
        if own.pictures and not told:
            concurrency = min(concurrency, _FIRST_WITH_PICTURES)
        return QueueBounds(gateway.in_force.settings.queue.depth, concurrency, own.priority)
