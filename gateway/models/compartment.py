"""The compartment of one model, with methods for requests, operators, the configuration, time and
upgrades.

Calls of these methods become events, which `gateway.models.condition` handles. Other events come
from the worker (`gateway.models.supervisor`), from the end of the worker and from deadlines
(`gateway.models.recovery`), and from the memory scheduler (`gateway.models.model_memory`).
`gateway.models.performer` performs the effects of all events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from gateway.config.model import Model
from gateway.memory.scheduler import AllocationState
from gateway.models.lifecycle import ModelEvent, State
from gateway.models.model_memory import GatewayParts
from gateway.models.performer import Performer
from gateway.requests import refusals
from gateway.requests.fair_shares import SharerState
from gateway.requests.request import Request, RequestState
from gateway.requests.use import UseState
from gateway.system.clock import until_set
from gateway.system.refusal import Refusal, RefusalState
from gateway.workers.report import WorkerState
from gateway.workers.starter import Channel
from gateway.workers.worker import Worker
from gateway.workers.worker_log import WorkerLog


class ModelState(Struct, frozen=True, kw_only=True):
    """The state of a model, from which another gateway goes on.

    `told` has the settings that the worker got at its load. `wanted`: the model waits for memory,
    and is to be loaded even without requests. `running` and `waiting` give each request a number.
    """

    id: str
    told: dict[str, str]
    held: RefusalState | None
    wanted: bool
    use: UseState
    memory: AllocationState | None
    running: tuple[tuple[int, RequestState], ...]
    waiting: tuple[tuple[int, RequestState], ...]
    worker: WorkerState | None
    channel: Channel | None
    shares: tuple[SharerState, ...] = ()


class Compartment:
    """Holds the parts of one model together: its condition, its requests, its memory, its recovery,
    and its worker while there is one.

    All methods run on the event loop. Other code can run only at an await, so a decision and its
    effects are one step.
    """

    def __init__(self, model: Model, log: WorkerLog, gateway: GatewayParts) -> None:
        self._performer = Performer(model, log, gateway)
        self.condition, self.traffic, self.model_memory, self.log, self._tasks = (
            self._performer.parts
        )
        self.recovery = self._performer.recovery
        self._deadlines = self._performer.deadlines
        self._starter = gateway.starter
        self._removed = False

    # For every caller

    @property
    def model(self) -> Model:
        """The model, with the settings in force."""
        return self._performer.model

    @property
    def state(self) -> State:
        return self.condition.state

    @property
    def worker(self) -> Worker | None:
        supervisor = self._performer.supervisor
        return None if supervisor is None else supervisor.worker

    @property
    def removed(self) -> bool:
        """Whether the model was taken out of the configuration."""
        return self._removed

    @property
    def over(self) -> bool:
        """Whether the model has no process, and doesn't wait for memory to start one."""
        return self.state in (State.UNLOADED, State.HELD, State.BACKOFF, State.FAILED)

    @property
    def _coming(self) -> bool:
        """Whether the model is loaded, or will be loaded without another request."""
        return self._performer.load_ordered or self.condition.lifecycle.on_its_way

    @property
    def _loaded(self) -> bool:
        """Whether the model is ready, or its worker starts or loads."""
        return self.state in (State.STARTING, State.LOADING, State.READY)

    async def until_idle(self) -> None:
        await self.condition.until(lambda: not self.traffic.busy)

    async def until_measured(self) -> None:
        """Wait for the first reading of the worker after its load, or until there is no worker."""
        await self.condition.until(
            lambda: self.worker is None or self.worker.memory.footprint is not None
        )

    async def until_ended(self) -> None:
        """Wait until the worker has ended, or has survived its shutdown sequence."""
        performer = self._performer
        await self.condition.until(
            lambda: performer.supervisor is None or performer.supervisor.given_up
        )

    async def clear_prompts(self, deadline_s: float) -> int | None:
        """Have the worker let go of the prompts in its memory.

        Return the bytes that this freed, or None if the worker needs longer than `deadline_s`. A
        worker that is ending may still write prompts to the disk, so its end is awaited.
        """
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
            told=self.model.load_values,
            held=None if hold is None else hold.state,
            wanted=self.state is State.WAITING and self._performer.kept,
            use=self.traffic.use.state,
            memory=self.model_memory.state,
            running=tuple((numbers(each), each.state) for each in running),
            waiting=tuple((numbers(each), each.state) for each in waiting),
            worker=None if self.worker is None else self.worker.state,
            channel=channel,
            shares=self.traffic.queue.shares.state,
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
        self.traffic.queue.shares.restore(state.shares)
        self.traffic.queue.restore(running, waiting)
        worker, channel = state.worker, state.channel
        if worker is not None and channel is not None and output is not None:
            self.condition.restore(State.READY, None)
            self._performer.supervise(
                lambda supervisor: self._starter.adopt(
                    worker, channel, output, self.log, supervisor
                )
            ).entered()
            self.recovery.entered()
        elif state.held is not None:
            self.condition.restore(State.HELD, Refusal.of(state.held))

    def settle(self, *, wanted: bool) -> None:
        """Take charge of a model that an earlier gateway had. `wanted`: load the model even without
        requests.
        """
        if (supervisor := self._performer.supervisor) is not None:
            self.model_memory.keeps_to_limits(supervisor.worker)
            supervisor.settle()
        elif wanted:
            self.preload()
        elif self.traffic.busy:
            self.condition.handle(ModelEvent.DEMAND)

    def leave(self) -> tuple[int, bytes] | None:
        """Give the model up to another gateway. Return the incarnation of the worker, and the part
        of an unfinished line that was read from its output; None without a worker.
        """
        self.traffic.forget()
        self._deadlines.disarm()
        self.recovery.disarm()
        self.condition.leave(refusals.being_replaced())
        supervisor, self._performer.supervisor = self._performer.supervisor, None
        if supervisor is None:
            return None
        return supervisor.worker.incarnation, supervisor.worker.hand_over()

    # Requests and time

    def submit(self, request: Request) -> None:
        """Take a request in, and start the model if need be.

        Raises:
            Refusal: the queue is full, the request has killed workers, the model lacks an ability
                for it, or only an operator may load the model.
        """
        orders_only = not self.model.settings.on_request and not self.traffic.handed_over
        if orders_only and not self._coming:
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
        unwanted = not (self.traffic.busy or self._performer.kept or self.model_memory.wanted_along)
        if self.state is State.WAITING and unwanted:
            self.condition.handle(ModelEvent.UNWANTED)
        if self.state is State.DRAINING and self.traffic.queue.running == 0:
            self.condition.handle(ModelEvent.DRAINED)
        if (
            self.state is State.UNLOADED
            and self._performer.kept
            and self.model_memory.to_read_again
        ):
            self.preload()
        self.model_memory.tick()
        if (supervisor := self._performer.supervisor) is not None:
            supervisor.tick(now)

    # The operator

    def load(self) -> None:
        self._forget_deaths()
        self._performer.load_ordered = self.state is not State.READY
        self.condition.handle(ModelEvent.LOAD)

    def preload(self, cause: ModelEvent = ModelEvent.PRELOAD) -> None:
        """Load the model without an operator's order, as at the gateway's start."""
        self._performer.load_ordered = self.state is not State.READY
        self.condition.handle(cause)

    def unload(self, *, hold: bool, force: bool) -> None:
        self._performer.load_ordered = False
        self.model_memory.dont_read_again()
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
        self._performer.load_ordered = True
        self.condition.handle(ModelEvent.RESTART)
        if force:
            self._deadlines.cut_drain()

    def kill(self, *, force: bool) -> None:
        self._performer.load_ordered = False
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
        self._performer.configure(model)
        if self._removed:
            # The model was being removed, and is configured again.
            self._removed = False
            self._forget_deaths()
            self._performer.load_ordered = True
            self.condition.handle(ModelEvent.RETURNED)
        elif not same:
            self._forget_deaths()
            if self._loaded:
                # Load the model again, even if no request waits.
                self._performer.load_ordered = True
            self.condition.handle(ModelEvent.CHANGED, "its settings changed")
        elif self.state is State.UNLOADED:
            self.condition.handle(ModelEvent.CHANGED)

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
        self._removed = True
        self._performer.load_ordered = False
        self.condition.handle(
            ModelEvent.REMOVED,
            "it was taken out of the configuration",
            refusal=refusals.removed(self.model.id),
        )

    def end(self) -> None:
        """End the worker at the gateway's end: by the polite sequence, without a drain, and without
        a start after it.
        """
        self._performer.load_ordered = False
        self.condition.handle(
            ModelEvent.SHUTDOWN, "the gateway ends", refusal=refusals.shutting_down()
        )

    async def close(self) -> None:
        self._deadlines.disarm()
        self.recovery.disarm()
        await self._tasks.cancel_all()
        self.log.close()
