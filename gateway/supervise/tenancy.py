"""A model's hold on memory: its turn, its grant, whether it keeps to it, when it must go."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Final

from gateway.config.sizes import format_size
from gateway.dispatch.refusal import Refusal
from gateway.dispatch.traffic import Traffic
from gateway.events import EventLog, Kind
from gateway.logs.line import about
from gateway.memory.watch import Advice, Watch
from gateway.supervise.condition import Condition
from gateway.supervise.lifecycle import Event, State
from gateway.supervise.model import Model
from gateway.supervise.steward import Steward
from gateway.supervise.worker import Worker
from protocol.messages import Trim

logger = logging.getLogger(__name__)

# A sequence of this share of the context tells what a whole one takes.
_WHOLE_CONTEXT: Final = 0.9
# What a load takes at least, in what clients are told.
_SHORTEST_LOAD_S: Final = 5


class Tenancy:
    """The model as the steward knows it. Times are the event loop's, in seconds.

    `lost_bytes` is what an earlier worker held and didn't come back. `reload_s` is how long it took
    from the start of the process until the model answered, the last time.
    """

    def __init__(
        self,
        model: Model,
        condition: Condition,
        traffic: Traffic,
        steward: Steward,
        events: EventLog,
    ) -> None:
        self.model = model
        self.granted_bytes: int | None = None
        self.lost_bytes = 0
        self.reload_s = 0.0
        self._condition = condition
        self._traffic = traffic
        self._steward = steward
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._ready_at = 0.0
        self._watch: Watch | None = None

    @property
    def load_s(self) -> int:
        """How long a load takes, by the last one, for those who are to come again after it."""
        return max(_SHORTEST_LOAD_S, round(self.reload_s))

    @property
    def working_bytes(self) -> int:
        """What activations may take of the grant."""
        return self._steward.working_bytes(self.model.id)

    # From the model

    def ask(self) -> None:
        """The answer comes by `admitted` or `has_no_room`."""
        self._steward.ask(self)

    def withdraw(self) -> None:
        """It doesn't wait for memory any more."""
        self._steward.withdraw(self.model.id)

    def entered(self) -> None:
        """Another state."""
        match self._condition.state:
            case State.READY:
                self._ready_at = self._loop.time()
                self._steward.ready(self)
            case State.DRAINING | State.STOPPING:
                self._steward.ending(self.model.id)
            case _:
                pass

    def gone(self, held_bytes: int) -> None:
        """Its process has ended, and had held so much."""
        self._steward.gone(self.model.id, held_bytes)

    def configure(self, model: Model) -> None:
        self.model = model
        self._steward.pin(self)

    def tick(self, now: float) -> None:
        """To be called a few times a second: who is idle for too long has to go."""
        if self._condition.state is State.READY and not self.busy and self._expired(now):
            self._condition.end_reason = f"idle for {self._idle_s(now):.0f} s"
            self._condition.handle(Event.EXPIRED)

    def measured(self, worker: Worker) -> None:
        """There is another reading of its worker: remember what it took, and act if that is over
        the grant.
        """
        if worker.held_bytes is None or worker.ended.is_set():
            return
        self._steward.note_footprint(self.model.id, worker.held_bytes)
        if self._condition.state is not State.READY:
            return
        self._learn(worker, worker.held_bytes)
        match self._advice(worker, worker.held_bytes):
            case Advice.TRIM:
                worker.send(Trim())
            case Advice.REPLACE:
                self._condition.end_reason = (
                    f"it holds {format_size(worker.held_bytes)} and was granted "
                    f"{format_size(self.granted_bytes or 0)}"
                )
                self._condition.handle(Event.OVERGROWN)

    # From the steward

    @property
    def priority(self) -> int:
        """The model's, or that of its most urgent request."""
        own = self._traffic.highest_priority
        return self.model.settings.priority if own is None else own

    @property
    def busy(self) -> bool:
        return self._traffic.busy

    @property
    def last_used(self) -> float:
        return self._traffic.last_used

    @property
    def waits_for_memory(self) -> bool:
        return self._condition.state is State.WAITING

    def note_wait(self, reason: str) -> None:
        """Why there is no room for it yet."""
        self._condition.reason = reason

    def admitted(self, granted_bytes: int) -> None:
        """There is room for it, and so many bytes are its own."""
        self.granted_bytes = granted_bytes
        self._watch = Watch(granted_bytes)
        self._condition.handle(Event.ADMITTED)

    def has_no_room(self, refusal: Refusal) -> None:
        """There never will be, as things are."""
        logger.warning(
            "%s isn't loaded: %s", self.model.id, refusal.message, extra=about(model=self.model.id)
        )
        self._condition.failure = refusal
        self._condition.handle(Event.NO_ROOM, refusal)

    def evict(self, reason: str) -> None:
        """Another model needs its memory; who is cut off goes on later."""
        self._condition.end_reason = reason
        self._condition.handle(Event.EVICT)

    def lost_memory(self, missing_bytes: int) -> None:
        """So much of what its last worker held did not come back: it isn't restarted any more
        by itself, since each restart may cost as much.
        """
        self.lost_bytes = missing_bytes

    # Inside

    def _idle_s(self, now: float) -> float:
        """How long nobody has used a model that is ready."""
        return now - max(self._traffic.last_used, self._ready_at)

    def _expired(self, now: float) -> bool:
        """Whether it was idle for as long as the last request, else the configuration, allows."""
        if self.model.settings.pinned:
            return False
        ttl_s = self._traffic.keep_alive_s
        if ttl_s is None:
            ttl_s = self.model.settings.ttl_s or math.inf
        return self._idle_s(now) >= ttl_s

    def _advice(self, worker: Worker, footprint_bytes: int) -> Advice | None:
        now = self._loop.time()
        advice = None if self._watch is None else self._watch.judge(now, footprint_bytes)
        if advice is not None:
            kind: Kind = "trim" if advice is Advice.TRIM else "overgrown"
            self._events.emit(
                kind,
                self.model.id,
                pid=worker.pid,
                footprint_bytes=footprint_bytes,
                granted_bytes=self.granted_bytes,
            )
        return advice

    def _learn(self, worker: Worker, footprint_bytes: int) -> None:
        if worker.idle_bytes is None:
            worker.idle_bytes = footprint_bytes
        estimated = self._steward.estimates.get(self.model.id)
        # What several sequences took together says nothing of one.
        told = (
            estimated is not None
            and self._traffic.most_running == 1
            and self._traffic.longest_tokens >= estimated.context_tokens * _WHOLE_CONTEXT
        )
        full_bytes = worker.peak_footprint_bytes if told else None
        if worker.learned != (worker.idle_bytes, full_bytes):
            worker.learned = (worker.idle_bytes, full_bytes)
            self._steward.learn(self.model.id, worker.idle_bytes, full_bytes)
