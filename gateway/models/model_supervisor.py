"""Supervises one model: takes requests, orders, settings and the time, and performs the effects of
its life cycle.

Calls become events, which `gateway.models.condition` handles. Other events come from the worker
(`gateway.models.worker_supervisor`), from the end of the worker (`gateway.models.recovery`), from
deadlines, and from the memory scheduler (`gateway.models.model_memory`). The effects of all events
are performed here. `gateway.models.load` tells the steps of a load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from gateway.config.model import Model
from gateway.memory.scheduler import AllocationState
from gateway.models.condition import Condition, Deadlines
from gateway.models.invalid_outputs import InvalidOutputs
from gateway.models.lifecycle import Circumstances, Effect, ModelEvent, State
from gateway.models.load import ModelLoad
from gateway.models.model_memory import GatewayParts, ModelMemory, ModelParts
from gateway.models.recovery import Recovery
from gateway.models.worker_supervisor import WorkerSupervisor
from gateway.requests import refusals
from gateway.requests.fair_shares import SharerState
from gateway.requests.request import Request, RequestState
from gateway.requests.traffic import QueueBounds, Traffic
from gateway.requests.use import UseState
from gateway.system.clock import until_set
from gateway.system.refusal import Refusal, RefusalState
from gateway.system.tasks import Tasks
from gateway.workers import shutdown_steps
from gateway.workers.cache_proof import CacheProof, CacheProofState
from gateway.workers.report import WorkerState
from gateway.workers.restart_policy import RestartAction
from gateway.workers.starter import Channel
from gateway.workers.worker import Listener, Worker
from gateway.workers.worker_log import WorkerLog

# Requests that run at once before the worker says whether its model with pictures takes several.
_FIRST_WITH_PICTURES: Final = 2
# Requests that run at once before the worker says how many make its batch faster.
_FIRST_CONCURRENCY: Final = 32
# An end by one of these events is a death, for which a request may be to blame.
_BLAMED: Final = (ModelEvent.MISBEHAVED, ModelEvent.HUNG, ModelEvent.EXIT)


class ModelState(Struct, frozen=True, kw_only=True):
    """The state of a model, from which another gateway goes on.

    `load_values` has the settings that the worker got at its load, and `plain` says whether it got
    them plain. `wanted`: the model waits for memory, and is to be loaded even without requests.
    `running` and `waiting` give each request a number.
    """

    id: str
    load_values: dict[str, str]
    held: RefusalState | None
    wanted: bool
    use: UseState
    memory: AllocationState | None
    running: tuple[tuple[int, RequestState], ...]
    waiting: tuple[tuple[int, RequestState], ...]
    worker: WorkerState | None
    channel: Channel | None
    shares: tuple[SharerState, ...] = ()
    cache_proof: CacheProofState | None = None
    plain: bool = False
    invalid_outputs: int = 0


class ModelSupervisor:
    """Supervises one model, and its worker while there is one. `removed`: the model was taken out
    of the configuration.

    All methods run on the event loop. Other code can run only at an await, so a decision and its
    effects are one step.
    """

    def __init__(self, model: Model, log: WorkerLog, gateway: GatewayParts) -> None:
        self.model = model
        self.log = log
        self.removed = False
        # An operator or the configuration wants the model loaded, and it isn't loaded yet.
        self._load_ordered = False
        self._worker: WorkerSupervisor | None = None
        self._gateway = gateway
        self._tasks = Tasks(model.id)
        self.condition = Condition(model.id, gateway.events, self)
        self.traffic = Traffic(model.id, self._queue_bounds, self, gateway.events)
        self.model_memory = ModelMemory(
            model, self.condition, self.traffic, gateway.scheduler, lambda: self._load_wanted
        )
        self.cache_proof = CacheProof(model.id, gateway.cache_failures)
        self._parts = ModelParts(
            *(self.condition, self.traffic, self.model_memory),
            *(log, self._tasks, self.cache_proof),
        )
        self.recovery = Recovery(model.id, self._parts, gateway)
        self.invalid_outputs = InvalidOutputs(self._parts, gateway.events)
        self._load = ModelLoad(self._parts, gateway, self.recovery, self._supervise)
        self._deadlines = Deadlines(model.id, gateway.in_force, self.condition)

    # For every caller

    @property
    def state(self) -> State:
        return self.condition.state

    @property
    def worker(self) -> Worker | None:
        return None if self._worker is None else self._worker.worker

    @property
    def over(self) -> bool:
        """Whether the model has no process, and doesn't wait for memory to start one."""
        return self.state in (State.UNLOADED, State.HELD, State.BACKOFF, State.FAILED)

    @property
    def _load_wanted(self) -> bool:
        """Whether the model is to be loaded even without requests."""
        settings = self.model.settings
        return self._load_ordered or settings.pinned or settings.preload

    async def until_idle(self) -> None:
        await self.condition.until(lambda: not self.traffic.busy)

    async def until_measured(self) -> None:
        """Wait for the first reading of the worker after its load, or until there is no worker."""
        await self.condition.until(
            lambda: self.worker is None or self.worker.memory.footprint is not None
        )

    async def until_ended(self) -> None:
        """Wait until the worker has ended, or has survived its shutdown sequence."""
        await self.condition.until(lambda: self._worker is None or self._worker.survived_kill)

    async def clear_prompts(self, deadline_s: float) -> int | None:
        """Have the worker let go of the prompts in its memory.

        Return the bytes that this freed, or None if the worker needs longer than `deadline_s`. A
        worker that is ending may still write prompts to the disk, so its end is awaited.
        """
        self.cache_proof.clear()
        match self.worker:
            case Worker() as worker if self.state is State.STOPPING:
                return 0 if await until_set(worker.ended, deadline_s) else None
            case Worker() as worker if worker.report.fingerprint is not None:
                return await worker.clear_prompts(deadline_s)
            case _:
                return 0

    # From one gateway to the next

    @property
    def unsettled(self) -> bool:
        """Whether the worker starts, loads, drains or ends, and so can't be handed over."""
        return self.condition.lifecycle.alive and self.state is not State.READY

    def state_for(self, numbers: Callable[[Request], int], channel: Channel | None) -> ModelState:
        """The state of the model, for another gateway that listens for the worker at `channel`.
        `numbers` returns the number of a request.

        Raises:
            ProcessGoneError, OSError: the worker has ended.
        """
        running, waiting = self.traffic.queue.in_order
        hold = self.condition.hold
        return ModelState(
            id=self.model.id,
            load_values=self.model.load_values,
            held=None if hold is None else hold.state,
            wanted=self.state is State.WAITING and self._load_wanted,
            use=self.traffic.use.state,
            memory=self.model_memory.state,
            running=tuple((numbers(request), request.state) for request in running),
            waiting=tuple((numbers(request), request.state) for request in waiting),
            worker=None if self.worker is None else self.worker.state,
            channel=channel,
            shares=self.traffic.queue.shares.state,
            cache_proof=self.cache_proof.state,
            plain=self.invalid_outputs.plain,
            invalid_outputs=self.invalid_outputs.count,
        )

    def restore(
        self,
        state: ModelState,
        output: int | None,
        running: Iterable[Request],
        waiting: Iterable[Request],
    ) -> None:
        """Go on from the state of an earlier gateway. `output` is the descriptor that the worker
        prints to.

        Raises:
            ProcessGoneError, OSError: the worker can't be taken over.
        """
        if state.memory is not None:
            self.model_memory.restore(state.memory)
        self.traffic.use.restore(state.use)
        if state.cache_proof is not None:
            self.cache_proof.state = state.cache_proof
        self.traffic.queue.shares.restore(state.shares)
        self.traffic.queue.restore(running, waiting)
        self.invalid_outputs.restore(plain=state.plain, count=state.invalid_outputs)
        self.model_memory.model = self.invalid_outputs.as_loaded(self.model)
        worker, channel = state.worker, state.channel
        if worker is not None and channel is not None and output is not None:
            self.condition.restore(State.READY, None)
            self._supervise(
                lambda listener: self._gateway.starter.adopt(
                    worker, channel, output, self.log, listener
                )
            )
            self.recovery.entered()
        elif state.held is not None:
            self.condition.restore(State.HELD, Refusal.of(state.held))

    def resume(self, *, wanted: bool) -> None:
        """Go on with a model that an earlier gateway had. `wanted`: load the model even without
        requests.
        """
        if self._worker is not None:
            self._worker.reconnect()
        elif wanted:
            self.preload()
        elif self.traffic.busy:
            self.condition.handle(ModelEvent.DEMAND)

    def release(self) -> tuple[int, bytes] | None:
        """Give the model up to another gateway. Return the incarnation of the worker, and the part
        of an unfinished line that was read from its output; None without a worker.
        """
        self.traffic.forget()
        self._deadlines.disarm()
        self.recovery.disarm()
        self.condition.release(refusals.being_replaced())
        worker, self._worker = self.worker, None
        return None if worker is None else (worker.incarnation, worker.hand_over())

    # Requests and time

    def submit(self, request: Request) -> None:
        """Admit a request, and start the model if need be.

        Raises:
            Refusal: the queue is full, the request has killed workers, the model lacks an ability
                for it, or only an operator may load the model.
        """
        orders_only = not self.model.settings.on_request and not self.traffic.handed_over
        coming = self._load_ordered or self.condition.lifecycle.on_its_way
        if orders_only and not coming:
            raise refusals.operators_only(self.model.id, self.state)
        self.traffic.submit(request)
        if self.traffic.handed_over:
            return
        self.traffic.dispatch()
        if not self.condition.lifecycle.on_its_way:
            self.condition.handle(ModelEvent.DEMAND)

    def tick(self, now: float, remind_after_s: float) -> None:
        """Act on the time that has passed. To be called a few times a second."""
        self.traffic.tick(now, remind_after_s)
        unwanted = not (self.traffic.busy or self._load_wanted or self.model_memory.wanted_along)
        if self.state is State.WAITING and unwanted:
            self.condition.handle(ModelEvent.UNWANTED)
        if self.state is State.DRAINING and self.traffic.queue.running == 0:
            self.condition.handle(ModelEvent.DRAINED)
        if self.state is State.UNLOADED and self._load_wanted and self.model_memory.retry_due:
            self.preload()
        self.model_memory.tick()
        if self.worker is not None:
            self.recovery.check_for_hang(self.worker, now)

    # The operator

    def load(self) -> None:
        self._forget_deaths()
        self._load_ordered = self.state is not State.READY
        self.condition.handle(ModelEvent.LOAD)

    def preload(self, cause: ModelEvent = ModelEvent.PRELOAD) -> None:
        """Load the model without an operator's order, as at the gateway's start."""
        self._load_ordered = self.state is not State.READY
        self.condition.handle(cause)

    def unload(self, *, hold: bool, force: bool) -> None:
        self._load_ordered = False
        self.model_memory.forget_retry()
        # Waiting requests would load the model again. If `on_request` is false, only an operator
        # may do that.
        hold = hold or not self.model.settings.on_request
        self.condition.handle(
            ModelEvent.HOLD if hold else ModelEvent.UNLOAD, refusal=refusals.held(self.model.id)
        )
        if force:
            self._deadlines.cut_drain()

    def restart(self, *, force: bool) -> None:
        self._forget_deaths()
        self._load_ordered = True
        self.condition.handle(ModelEvent.RESTART)
        if force:
            self._deadlines.cut_drain()

    def kill(self, *, force: bool) -> None:
        self._load_ordered = False
        self.condition.handle(ModelEvent.DESTROY if force else ModelEvent.KILL)

    def _forget_deaths(self) -> None:
        self.recovery.forget()
        self.model_memory.lost_bytes = 0
        self.traffic.forget_deaths()
        self._deadlines.forget_timeouts()

    # The configuration

    def configure(self, model: Model) -> None:
        """Take the gateway's settings in force, and `model` with its new settings. If a setting
        has changed that a worker gets only at its load, the present worker is drained, and another
        one starts.
        """
        same = self.model.same_for_workers(model)
        self.model = model
        self.traffic.configure(self._queue_bounds)
        self.model_memory.configure(self.invalid_outputs.as_loaded(model))
        self.recovery.configure()
        if self.removed:
            # The model was being removed, and is configured again.
            self.removed = False
            self._forget_deaths()
            self._load_ordered = True
            self.condition.handle(ModelEvent.RETURNED)
        elif not same:
            self._forget_deaths()
            if self.state in (State.STARTING, State.LOADING, State.READY):
                # Load the model again, even if no request waits.
                self._load_ordered = True
            self.condition.handle(ModelEvent.CHANGED, "its settings changed")
        elif self.state is State.UNLOADED:
            self.condition.handle(ModelEvent.CHANGED)

    @property
    def _queue_bounds(self) -> QueueBounds:
        settings = self.model.settings
        rows = 0 if self.worker is None else self.worker.report.rows
        concurrency = settings.max_concurrency or rows or _FIRST_CONCURRENCY
        if settings.pictures and not rows:
            concurrency = min(concurrency, _FIRST_WITH_PICTURES)
        depth = self._gateway.in_force.settings.queue.depth
        return QueueBounds(depth, concurrency, settings.priority)

    def look_again(self) -> None:
        """Load the model, whose disk is mounted again, if requests wait or if the model is to be
        kept loaded.
        """
        if self.state in (State.UNLOADED, State.FAILED):
            self._forget_deaths()
            self.condition.handle(ModelEvent.CHANGED)

    def remove(self) -> None:
        """Unload a model that isn't configured any more. Running requests may finish within the
        drain time.
        """
        self.removed = True
        self._load_ordered = False
        self.condition.handle(
            ModelEvent.REMOVED,
            "it was taken out of the configuration",
            refusal=refusals.removed(self.model.id),
        )

    def end(self) -> None:
        """End the worker at the gateway's end: by the polite shutdown sequence, without a drain,
        and without a start after it.
        """
        self._load_ordered = False
        self.condition.handle(
            ModelEvent.SHUTDOWN, "the gateway ends", refusal=refusals.shutting_down()
        )

    async def close(self) -> None:
        self._deadlines.disarm()
        self.recovery.disarm()
        await self._tasks.cancel_all()
        self.log.close()

    # For the traffic: `QueueOwner` describes these methods

    @property
    def load_s(self) -> int:
        return self.model_memory.load_s

    @property
    def short_of_memory(self) -> bool:
        return self.worker is not None and self.worker.report.short_of_memory > 0

    def notify(self) -> None:
        self.condition.notify()

    def describe(self) -> str:
        return self.condition.describe()

    # For the life cycle: `Effector` describes these methods

    def circumstances(self, event: ModelEvent, after_death: RestartAction) -> Circumstances:
        queue = self.traffic.queue
        judged = event in _BLAMED and self.condition.lifecycle.judged
        blamed = queue.blamed if judged else 0
        return Circumstances(
            requests_wait=queue.waiting + queue.running > blamed,
            load_wanted=self._load_wanted or self.model_memory.wanted_along,
            after_death=after_death,
        )

    def unavailable(self) -> Refusal:
        retry_after_s = self.recovery.retry_after_s
        if retry_after_s is None and self.state is not State.FAILED:
            retry_after_s = self.load_s
        return refusals.unavailable(
            self.model.id, self.state, self.condition.reason, retry_after_s=retry_after_s
        )

    def entered(self, before: State) -> None:
        self._deadlines.entered()
        self.recovery.entered()
        self.invalid_outputs.entered()
        self.model_memory.entered()
        if self.worker is not None:
            self.recovery.deaths.loaded(self.worker.report.fingerprint)
        loaded_or_refused = (State.READY, State.BACKOFF, State.FAILED, State.HELD)
        withdrawn = self.state is State.UNLOADED and before is State.WAITING
        if self.state in loaded_or_refused or withdrawn:
            self._load_ordered = False

    def perform(self, effect: Effect, event: ModelEvent, refusal: Refusal) -> None:
        match effect:
            case Effect.ASK:
                self.invalid_outputs.starting()
                self.model_memory.model = self.invalid_outputs.as_loaded(self.model)
                self._load.ask_for_memory()
            case Effect.WITHDRAW:
                self.model_memory.withdraw()
            case Effect.SPAWN:
                self._load.start_worker()
            case Effect.PARK_RUNNING:
                if self.traffic.park(blame=event in _BLAMED):
                    self.recovery.excuse()
            case Effect.REFUSE_WAITING:
                self.traffic.refuse_waiting(refusal)
            case _ if self._worker is None:
                raise AssertionError(f"{effect} without a worker")
            case Effect.SEND_LOAD:
                self._worker.order_load()
            case Effect.DISPATCH:
                self._worker.connect()
            case Effect.DRAIN:
                self._worker.drain()
            case Effect.STOP:
                self._worker.end(shutdown_steps.polite(self._worker.worker.memory.held_bytes))
            case Effect.KILL:
                self._worker.end(shutdown_steps.shortened(self._worker.worker.memory.held_bytes))
            case Effect.DESTROY:
                self._worker.end(shutdown_steps.immediate())
            case Effect.DUMP_AND_DESTROY:
                self._worker.end(shutdown_steps.hung(self._worker.worker.memory.held_bytes))

    def _supervise(self, start: Callable[[Listener], Worker]) -> None:
        """Start or adopt a worker, by a call of `start`. Raises: all that `start` raises."""
        self._worker = WorkerSupervisor(
            self._parts,
            self._gateway,
            self._load,
            self.recovery,
            self.invalid_outputs,
            start,
            self._worker_ended,
        )

    def _worker_ended(self) -> None:
        self._worker = None
