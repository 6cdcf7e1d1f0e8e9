"""A model's hold on memory: its turn, its grant, whether its worker keeps to that, when it must go;
and the parts of a model, of which this is one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.config.model import Model
from gateway.config.tables import InForce
from gateway.memory.allocation import MemoryNeed
from gateway.memory.estimate import Estimate
from gateway.memory.scheduler import AllocationState, MemoryScheduler
from gateway.models.condition import Condition
from gateway.models.lifecycle import ModelEvent, State
from gateway.requests import refusals
from gateway.requests.traffic import Traffic
from gateway.system.clock import present_clock
from gateway.system.events import EventLog
from gateway.system.log_lines import about
from gateway.system.refusal import Refusal
from gateway.system.tasks import Tasks
from gateway.workers.starter import Starter
from gateway.workers.worker import Worker
from gateway.workers.worker_log import WorkerLog
from protocol.life import Bound, Limit, Need, PromptCacheDisk

logger = logging.getLogger(__name__)

# The least that clients are told a load takes.
_SHORTEST_LOAD_S: Final = 5
# Until files that could not be read are tried again.
_READ_AGAIN_S: Final = 30
# The same for files on a disk that is awaited, in case its return is missed.
_WATCHED_S: Final = 600


class ModelMemory:
    """The model as the scheduler knows it. Times are those of `gateway.system.clock`, in seconds: a
    sleep of the machine is no idleness.

    An earlier worker has left `lost_bytes` stranded. The last load took `reload_s`, from the start
    of its worker, or the adoption of a spare, until the model was ready.
    """

    def __init__(
        self,
        model: Model,
        condition: Condition,
        traffic: Traffic,
        scheduler: MemoryScheduler,
        kept: Callable[[], bool],
    ) -> None:
        """`kept` says whether it is to be loaded even without requests."""
        self.model = model
        self.granted_bytes: int | None = None
        self.lost_bytes = 0
        self.reload_s = 0.0
        self._condition = condition
        self._traffic = traffic
        self._scheduler = scheduler
        self._kept = kept
        self._clock = present_clock()
        self._ready_at = 0.0
        self._read_again_at: float | None = None
        self._told_bound: Bound | None = None
        # The worker has to be told anew what it holds beside MLX's account.
        self._beside_moved = False
        # The worker that is told of limits, once it is loaded.
        self._worker: Worker | None = None

    @property
    def load_s(self) -> int:
        """Seconds that a load takes, by the last one, for clients that are to try again."""
        return max(_SHORTEST_LOAD_S, round(self.reload_s))

    @property
    def expires_in_s(self) -> float:
        """When it is unloaded if no request comes; infinity: never."""
        idle_s = 0.0 if self.busy else self._idle_s(self._clock.now())
        return max(0.0, self._ttl_s - idle_s)

    @property
    def estimate(self) -> Estimate | None:
        """The estimate that it was admitted by; None: there was none."""
        return self._scheduler.estimate_of(self.model.id)

    def tell_bound(self) -> Bound | None:
        """The most that it can get at present, to tell its worker."""
        self._told_bound = self._scheduler.bound(self.model.id)
        return self._told_bound

    # From one gateway to the next

    @property
    def state(self) -> AllocationState | None:
        """For another gateway; None: the model has no memory."""
        return self._scheduler.held(self.model.id)

    def restore(self, state: AllocationState) -> None:
        """Go on with the memory that an earlier gateway gave the model."""
        self.granted_bytes = state.allocation.limit_bytes
        self.reload_s = state.allocation.reload_s
        self._ready_at = state.allocation.ready_at or 0.0
        self._scheduler.adopt(state)

    def keeps_to_limits(self, worker: Worker) -> None:
        """An earlier gateway has told this worker its limits."""
        self._worker = worker

    # From the model

    def ask(self) -> None:
        """The answer comes by `admitted`, `has_no_room` or `cannot_be_read`."""
        self._read_again_at = None
        self._scheduler.ask(self)

    def withdraw(self) -> None:
        """It doesn't wait for memory any more."""
        self._scheduler.withdraw(self.model.id)

    def entered(self) -> None:
        """Another state was entered."""
        match self._condition.state:
            case State.READY:
                self._ready_at = self._clock.now()
                self._scheduler.ready(self)
            case State.DRAINING | State.STOPPING:
                self._scheduler.ending(self.model.id)
            case _:
                pass

    def gone(self, pid: int | None, *, clean: bool) -> None:
        """Its process has ended, by itself if `clean`; `pid` None: it could not be started."""
        self._worker = None
        self._scheduler.gone(self.model.id, pid, clean=clean)

    @property
    def wanted_along(self) -> bool:
        """A model that it is loaded with waits or loads."""
        return self._scheduler.wanted_along(self.model.id)

    def configure(self, model: Model) -> None:
        self.model = model
        self._scheduler.pin(self)

    def tick(self) -> None:
        """To be called a few times a second: unload the model if it was idle for too long."""
        now = self._clock.now()
        if self._condition.state is State.READY and not self.busy and self._expired(now):
            self._condition.handle(ModelEvent.EXPIRED, f"idle for {self._idle_s(now):.0f} s")

    def dont_read_again(self) -> None:
        """Don't try unreadable files again: an operator wants it unloaded."""
        self._read_again_at = None

    @property
    def to_read_again(self) -> bool:
        """Its files could not be read, and it is time to try again."""
        return self._read_again_at is not None and self._clock.now() >= self._read_again_at

    def started(self, worker: Worker) -> None:
        """A worker without a model yet was measured."""
        alone = worker.followers is None and self.model.settings.interpreter is None
        if worker.memory.held_bytes is not None and alone:
            self._scheduler.learn_process(worker.memory.held_bytes)

    def measured(self, worker: Worker) -> None:
        """There is another reading of its worker."""
        held_bytes = worker.memory.held_bytes
        if held_bytes is None or worker.ended.is_set():
            return
        ready = self._condition.state is State.READY
        self._beside_moved = ready and worker.memory.beside_moved
        self._scheduler.note_footprint(
            self.model.id,
            held_bytes,
            worker.memory.read_at_bytes,
            worker.memory.beside_more_bytes if self._beside_moved else 0,
        )
        if ready and worker.memory.idle_bytes is None:
            worker.memory.idle_bytes = held_bytes
            self._scheduler.learn(self.model.id, held_bytes)

    def needs(self, worker: Worker, need: Need) -> None:
        """The worker says what it could use, and which limit it keeps to."""
        self._worker = worker
        self._scheduler.note_need(
            self.model.id,
            MemoryNeed(
                used_bytes=need.used_bytes,
                wanted_bytes=need.wanted_bytes,
                least_bytes=need.least_bytes,
                held=need.held,
                prompt=need.prompt,
                cache_bytes=need.cache_bytes,
                cache_wanted_bytes=need.cache_wanted_bytes,
            ),
            need.limit_bytes,
        )

    # From the memory scheduler, as `ScheduledModel` says

    @property
    def priority(self) -> int:
        """The model's, or that of its most urgent request."""
        own = self._traffic.queue.highest_priority
        return self.model.settings.priority if own is None else own

    @property
    def busy(self) -> bool:
        return self._traffic.busy

    @property
    def last_used(self) -> float:
        return self._traffic.use.last

    @property
    def waits_for_memory(self) -> bool:
        return self._condition.state is State.WAITING

    @property
    def asleep(self) -> bool:
        return self._condition.state is State.UNLOADED and self._read_again_at is None

    @property
    def brings_along(self) -> bool:
        if self._condition.state in (State.STARTING, State.LOADING):
            return True
        return self.waits_for_memory and (self.busy or self._kept())

    def load_along(self) -> None:
        self._condition.handle(ModelEvent.ALONG)

    def note_wait(self, reason: str) -> None:
        self._condition.progress(reason)

    def admitted(self, floor_bytes: int) -> None:
        self.granted_bytes = floor_bytes
        self._condition.handle(ModelEvent.ADMITTED)

    def take_limit(self, limit_bytes: int) -> None:
        self.granted_bytes = limit_bytes

    def tell_worker(self) -> None:
        """Tell its worker the limit, the most that it can get, and what it holds beside MLX's
        account, unless the worker knows all these.
        """
        worker = self._worker
        if worker is None or worker.ended.is_set() or self.granted_bytes is None:
            return
        told = worker.memory.granted_bytes, self._told_bound
        bound = self._scheduler.bound(self.model.id)
        if told == (self.granted_bytes, bound) and not self._beside_moved:
            return
        self._beside_moved = False
        self._told_bound = bound
        worker.memory.granted_bytes = self.granted_bytes
        worker.send(
            Limit(
                limit_bytes=self.granted_bytes,
                beside_bytes=worker.memory.tell_beside(),
                bound=bound,
            )
        )

    def replace(self, reason: str) -> None:
        self._condition.handle(ModelEvent.OVERGROWN, reason)

    def hangs(self, reason: str) -> None:
        self._condition.handle(ModelEvent.HUNG, reason)

    def has_no_room(self, refusal: Refusal) -> None:
        logger.warning(
            "%s isn't loaded: %s", self.model.id, refusal.message, extra=about(model=self.model.id)
        )
        self._condition.handle(ModelEvent.NO_ROOM, refusal=refusal)

    def cannot_be_read(self, reason: str, *, watched: bool) -> None:
        refusal = refusals.load_failed(self.model.id, reason, retry_after_s=_READ_AGAIN_S)
        logger.warning("%s", refusal.message, extra=about(model=self.model.id))
        self._condition.handle(ModelEvent.UNREADABLE, reason, refusal=refusal)
        self._read_again_at = self._clock.now() + (_WATCHED_S if watched else _READ_AGAIN_S)

    def evict(self, reason: str) -> None:
        self._condition.handle(ModelEvent.EVICT, reason)

    def lost_memory(self, missing_bytes: int) -> None:
        """Its last worker left so many bytes stranded. It isn't restarted by itself any more, as
        each restart may cost as much.
        """
        self.lost_bytes = missing_bytes

    # Inside

    def _idle_s(self, now: float) -> float:
        """How long a model that is ready was not used."""
        return now - max(self._traffic.use.last, self._ready_at)

    def _expired(self, now: float) -> bool:
        """Whether it was idle for as long as it may be."""
        return self._idle_s(now) >= self._ttl_s

    @property
    def _ttl_s(self) -> float:
        """How long it may be idle, by the last request, else by the configuration."""
        if self.model.settings.pinned:
            return math.inf
        asked_s = self._traffic.use.keep_alive_s
        return (self.model.settings.ttl_s or math.inf) if asked_s is None else asked_s


class GatewayParts(NamedTuple):
    """The objects that all models of a gateway share. Without a `prompt_cache` workers keep prompts
    in memory alone.
    """

    in_force: InForce
    events: EventLog
    scheduler: MemoryScheduler
    starter: Starter
    prompt_cache: PromptCacheDisk | None


class ModelParts(NamedTuple):
    """The objects of one model, without its worker."""

    condition: Condition
    traffic: Traffic
    model_memory: ModelMemory
    log: WorkerLog
    tasks: Tasks
