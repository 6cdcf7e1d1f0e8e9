"""The memory of one model: its claim, its limit, its use by the worker, and the end by its ttl.
`ModelParts` and `GatewayParts` name the other objects of a model.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from gateway.config.model import Model
from gateway.config.tables import InForce
from gateway.memory.allocation import MemoryNeed, WorkerReading
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
from gateway.workers.cache_failures import CacheFailures
from gateway.workers.cache_proof import CacheProof
from gateway.workers.starter import Starter
from gateway.workers.worker import Worker
from gateway.workers.worker_log import WorkerLog
from protocol.life import Bound, Limit, Need, PromptCacheDisk

logger = logging.getLogger(__name__)

# The shortest time for a load that is reported to clients.
_SHORTEST_LOAD_S: Final = 5
# After this time a load of files that could not be read is tried again.
_RETRY_S: Final = 30
# The same for files on a disk that isn't mounted. `Disks` notices its return, but may miss it.
_WATCHED_S: Final = 600


class ModelMemory:
    """One model as the memory scheduler knows it. Times are seconds on the clock of
    `gateway.system.clock`, which stands still while the machine sleeps.

    `granted_bytes` is the limit of the model's worker. `lost_bytes` are those that an earlier
    worker has left stranded. `reload_s` is the time that the last load took, from the start of the
    worker, or the adoption of a spare, until the model was ready.
    """

    def __init__(
        self,
        model: Model,
        condition: Condition,
        traffic: Traffic,
        scheduler: MemoryScheduler,
        load_wanted: Callable[[], bool],
    ) -> None:
        """`load_wanted` returns whether the model is to be loaded even without requests."""
        self.model = model
        self.granted_bytes: int | None = None
        self.lost_bytes = 0
        self.reload_s = 0.0
        self._condition = condition
        self._traffic = traffic
        self._scheduler = scheduler
        self._load_wanted = load_wanted
        self._clock = present_clock()
        self._ready_at = 0.0
        self._retry_at: float | None = None
        self._sent_bound: Bound | None = None
        # The bytes that the worker holds beside MLX's account have changed, and the new number is
        # still to be sent to the worker.
        self._beside_changed = False
        # The loaded worker, to which limits are sent.
        self._worker: Worker | None = None

    @property
    def load_s(self) -> int:
        """Seconds that the last load took, for clients that are to try again after a load."""
        return max(_SHORTEST_LOAD_S, round(self.reload_s))

    @property
    def expires_in_s(self) -> float:
        """Seconds until the model is unloaded if no request comes; infinity: never."""
        idle_s = 0.0 if self.busy else self._idle_s(self._clock.now())
        return max(0.0, self._ttl_s - idle_s)

    @property
    def estimate(self) -> Estimate | None:
        """The estimate of the model's memory, with the context in force; None: there is none."""
        return self._scheduler.estimate_of(self.model.id)

    def bound_to_send(self) -> Bound | None:
        """The most memory that the model can get now, for a message to its worker."""
        self._sent_bound = self._scheduler.bound(self.model.id)
        return self._sent_bound

    # From one gateway to the next

    @property
    def state(self) -> AllocationState | None:
        """The memory of the model, for another gateway; None: the model has no memory."""
        return self._scheduler.state_of(self.model.id)

    def restore(self, state: AllocationState) -> None:
        """Go on with the memory that an earlier gateway gave the model."""
        self.granted_bytes = state.allocation.limit_bytes
        self.reload_s = state.allocation.reload_s
        self._ready_at = state.allocation.ready_at or 0.0
        self._scheduler.adopt(state)

    def listens(self, worker: Worker) -> None:
        """Send limits to this worker from now on. An earlier gateway has sent the present one."""
        self._worker = worker

    # From the model

    def ask(self) -> None:
        """Ask the scheduler for the model's floor. The scheduler answers by a call of `admitted`,
        `has_no_room` or `cannot_be_read`.
        """
        self._retry_at = None
        self._scheduler.ask(self)

    def withdraw(self) -> None:
        """Tell the scheduler that the model doesn't wait for memory any more."""
        self._scheduler.withdraw(self.model.id)

    def entered(self) -> None:
        """Tell the scheduler that the model is ready, or that its worker ends."""
        match self._condition.state:
            case State.READY:
                self._ready_at = self._clock.now()
                self._scheduler.ready(self)
            case State.DRAINING | State.STOPPING:
                self._scheduler.ending(self.model.id)
            case _:
                pass

    def gone(self, pid: int | None) -> None:
        """Free the memory of the model's process, which has ended. `pid` None: none could be
        started.
        """
        self._worker = None
        self._scheduler.gone(self.model.id, pid)

    @property
    def wanted_along(self) -> bool:
        """Whether a model that this one is loaded with waits or loads for its own sake."""
        return self._scheduler.wanted_along(self.model.id)

    def configure(self, model: Model) -> None:
        self.model = model
        self._scheduler.pin(self)

    def tick(self) -> None:
        """Unload the model if its ttl has passed. To be called a few times a second."""
        now = self._clock.now()
        if self._condition.state is State.READY and not self.busy and self._expired(now):
            self._condition.handle(ModelEvent.EXPIRED, f"idle for {self._idle_s(now):.0f} s")

    def forget_retry(self) -> None:
        """Don't try unreadable files again, as an operator wants the model unloaded."""
        self._retry_at = None

    @property
    def retry_due(self) -> bool:
        """Whether the model's files could not be read, and it is time to try again."""
        return self._retry_at is not None and self._clock.now() >= self._retry_at

    def learn_process(self, worker: Worker) -> None:
        """Learn what a worker without a model takes. `worker` was measured before its load. A
        worker with followers, or with an interpreter of its own, says nothing about others.
        """
        alone = worker.followers is None and self.model.settings.interpreter is None
        if worker.memory.held_bytes is not None and alone:
            self._scheduler.learn_process(worker.memory.held_bytes)

    def record(self, worker: Worker, reading: WorkerReading) -> None:
        """Hand a reading of the model's worker to the scheduler, and learn from it."""
        if worker.ended.is_set():
            return
        ready = self._condition.state is State.READY
        is_command = self.model.is_command
        if is_command or not ready:
            # Only a loaded worker is sent what it holds beside MLX's account.
            reading = msgspec.structs.replace(reading, unsent_bytes=0)
        self._beside_changed = reading.unsent_bytes != 0
        self._scheduler.record(self.model.id, reading)
        if ready and worker.memory.idle_bytes is None:
            worker.memory.idle_bytes = reading.footprint_bytes
            self._scheduler.learn(self.model.id, reading.footprint_bytes)
        if is_command:
            self._scheduler.learn_peak(self.model.id, reading.peak_bytes, ready=ready)
        if ready and is_command:
            self._worker = worker
            self._answer_for(worker)

    def _answer_for(self, worker: Worker) -> None:
        """Answer in place of a command, which knows nothing of limits: it needs all that it holds.
        Memory that is called back from it comes back only if it holds less than its limit.
        """
        held_bytes = worker.memory.held_bytes
        if held_bytes is None or self.granted_bytes is None or worker.ended.is_set():
            return
        worker.memory.granted_bytes = self.granted_bytes
        worker.memory.keeps_to(self.granted_bytes)
        used_bytes = min(held_bytes, self.granted_bytes)
        need = MemoryNeed(used_bytes=used_bytes, wanted_bytes=held_bytes, least_bytes=used_bytes)
        self._scheduler.record_need(self.model.id, need, self.granted_bytes)

    def record_need(self, worker: Worker, need: Need) -> None:
        """Hand the worker's need to the scheduler, and the limit that the worker keeps to."""
        self._worker = worker
        self._scheduler.record_need(
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

    # From the memory scheduler: `ScheduledModel` describes these methods

    @property
    def priority(self) -> int:
        """The highest priority of the model's requests; without requests the model's own."""
        highest = self._traffic.queue.highest_priority
        return self.model.settings.priority if highest is None else highest

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
        return self._condition.state is State.UNLOADED and self._retry_at is None

    @property
    def brings_along(self) -> bool:
        if self._condition.state in (State.STARTING, State.LOADING):
            return True
        return self.waits_for_memory and (self.busy or self._load_wanted())

    def load_with_group(self) -> None:
        self._condition.handle(ModelEvent.ALONG)

    def explain_wait(self, reason: str) -> None:
        self._condition.progress(reason)

    def admitted(self, floor_bytes: int) -> None:
        self.granted_bytes = floor_bytes
        self._condition.handle(ModelEvent.ADMITTED)

    def set_limit(self, limit_bytes: int) -> None:
        self.granted_bytes = limit_bytes

    def send_limit(self) -> None:
        """Send the worker its limit, the most memory that the model can get, and the bytes that the
        worker holds beside MLX's account. Send nothing if the worker knows all three.
        """
        worker = self._worker
        if worker is None or worker.ended.is_set() or self.granted_bytes is None:
            return
        if self.model.is_command:
            if worker.memory.granted_bytes != self.granted_bytes:
                # Not within the decision that has changed the limit.
                asyncio.get_running_loop().call_soon(self._answer_for, worker)
            return
        sent = worker.memory.granted_bytes, self._sent_bound
        bound = self._scheduler.bound(self.model.id)
        if sent == (self.granted_bytes, bound) and not self._beside_changed:
            return
        self._beside_changed = False
        self._sent_bound = bound
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
        refusal = refusals.load_failed(self.model.id, reason, retry_after_s=_RETRY_S)
        logger.warning("%s", refusal.message, extra=about(model=self.model.id))
        self._condition.handle(ModelEvent.UNREADABLE, reason, refusal=refusal)
        self._retry_at = self._clock.now() + (_WATCHED_S if watched else _RETRY_S)

    def evict(self, reason: str) -> None:
        self._condition.handle(ModelEvent.EVICT, reason)

    def refuse_longest(self, refusal: Refusal) -> None:
        self._traffic.refuse_longest(refusal)

    def lost_memory(self, missing_bytes: int) -> None:
        """Record that the last worker left `missing_bytes` stranded. After its next death the model
        isn't restarted, as each death may strand as much again.
        """
        self.lost_bytes = missing_bytes

    # Inside

    def _idle_s(self, now: float) -> float:
        """Seconds since a ready model was last used, or got ready."""
        return now - max(self._traffic.use.last, self._ready_at)

    def _expired(self, now: float) -> bool:
        """Whether an idle model's ttl has passed."""
        return self._idle_s(now) >= self._ttl_s

    @property
    def _ttl_s(self) -> float:
        """Seconds that the model may be idle: by the last request, or else by the configuration.
        Infinity: for ever.
        """
        if self.model.settings.pinned:
            return math.inf
        keep_alive_s = self._traffic.use.keep_alive_s
        return (self.model.settings.ttl_s or math.inf) if keep_alive_s is None else keep_alive_s


class GatewayParts(NamedTuple):
    """The objects that all models of a gateway share. Without a `prompt_cache` workers keep prompts
    in memory alone.
    """

    in_force: InForce
    events: EventLog
    scheduler: MemoryScheduler
    starter: Starter
    prompt_cache: PromptCacheDisk | None
    cache_failures: CacheFailures


class ModelParts(NamedTuple):
    """The objects of one model, without its worker."""

    condition: Condition
    traffic: Traffic
    model_memory: ModelMemory
    log: WorkerLog
    tasks: Tasks
    cache_proof: CacheProof
