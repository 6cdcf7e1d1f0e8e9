"""A model's hold on memory: its grant, whether it keeps to it, and how long it may be idle."""

from __future__ import annotations

import math

from gateway.dispatch.traffic import Traffic
from gateway.events import EventLog, Kind
from gateway.memory.watch import Advice, Watch
from gateway.supervise.model import Model
from gateway.supervise.steward import Steward
from gateway.supervise.worker import Worker

# A sequence of this share of the context tells what a whole one takes.
_WHOLE_CONTEXT = 0.9


class Tenancy:
    """Times are the event loop's, in seconds."""

    def __init__(self, model: Model, traffic: Traffic, steward: Steward, events: EventLog) -> None:
        self.granted_bytes: int | None = None
        # What an earlier worker held and didn't come back.
        self.lost_bytes = 0
        self.ready_at = 0.0
        # From the start of its process until the model answered, the last time.
        self.reload_s = 0.0
        self.model = model
        self._traffic = traffic
        self._steward = steward
        self._events = events
        self._watch: Watch | None = None

    def admitted(self, granted_bytes: int) -> None:
        self.granted_bytes = granted_bytes
        self._watch = Watch(granted_bytes)

    def idle_s(self, now: float) -> float:
        """How long nobody has used a model that is ready."""
        return now - max(self._traffic.last_used, self.ready_at)

    def expired(self, now: float) -> bool:
        """Whether it was idle for as long as the last request, else the configuration, allows."""
        if self.model.settings.pinned:
            return False
        ttl_s = self._traffic.keep_alive_s
        if ttl_s is None:
            ttl_s = self.model.settings.ttl_s or math.inf
        return self.idle_s(now) >= ttl_s

    def judge(self, worker: Worker, footprint_bytes: int, now: float) -> Advice | None:
        """What to do after a reading of a worker that is ready; remembers what it took."""
        self._learn(worker, footprint_bytes)
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
