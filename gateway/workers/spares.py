"""Spares: workers that have done their imports and wait for a model.

The imports take seconds, almost as long as the weights of a small model. A load that adopts a spare
reads the weights at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gateway.config.tables import InForce
from gateway.system.child import ExitStatus
from gateway.system.clock import Presence
from gateway.system.events import EventLog
from gateway.system.log_lines import about
from gateway.system.tasks import Tasks
from gateway.workers import shutdown_steps
from gateway.workers.hang_detector import HangDetector
from gateway.workers.restart_policy import RestartPolicy
from gateway.workers.worker import Listener, Worker
from protocol.life import Heartbeat, Hello
from protocol.messages import WorkerMessage

logger = logging.getLogger(__name__)

# A spare sends a heartbeat every second. A spare that was silent for longer than this isn't
# adopted.
_FRESH_S: Final = 3.0


class _Spare:
    def __init__(self, started_at: float) -> None:
        self.started_at = started_at
        self.hello: Hello | None = None
        self.hang: HangDetector | None = None
        # Whether the spare is being ended without a fault.
        self.dismissed = False


class Spares:
    """Keeps as many spares as are configured, and supervises them until they are adopted."""

    def __init__(
        self,
        in_force: InForce,
        start: Callable[[Listener], Worker],
        events: EventLog,
    ) -> None:
        self._in_force = in_force
        self._start = start
        self._policy = RestartPolicy(in_force.settings.workers)
        self._events = events
        self._spares: dict[Worker, _Spare] = {}
        self._not_before = 0.0
        self._closing = False
        self._useless = False
        self._loop = asyncio.get_running_loop()
        self._presence = Presence(self._loop.time())
        self._tasks = Tasks("spares")

    @property
    def workers(self) -> list[Worker]:
        return list(self._spares)

    def adopt(self) -> tuple[Worker, Hello] | None:
        """Remove and return a healthy spare, with its hello, for a load; None: there is none."""
        now = self._loop.time()
        for worker, spare in self._spares.items():
            if spare.hello is None or spare.hang is None or worker.ended.is_set():
                continue
            if spare.dismissed:
                continue
            if spare.hang.silence_s(now) < _FRESH_S:
                del self._spares[worker]
                return worker, spare.hello
        return None

    def tick(self, now: float, *, at_most: int, loading: bool) -> None:
        """Judge the spares, start a missing one unless a model is `loading`, and end surplus ones.
        Memory has room for `at_most` spares. To be called a few times a second.
        """
        settings = self._in_force.settings.workers
        absent_s = self._presence.absent_s(now)
        for spare in self._spares.values():
            spare.started_at += absent_s
        wanted = 0 if self._useless else min(settings.spare, at_most)
        self._policy.settings = settings
        for worker, spare in list(self._spares.items()):
            if spare.dismissed:
                continue
            if spare.hello is None and now - spare.started_at >= settings.load_timeout_s:
                spare.started_at = now
                self._end(worker, f"no hello within {settings.load_timeout_s:g} s")
            if spare.hang is not None and (reason := spare.hang.judge(now, has_work=False)):
                spare.hang = None
                self._end(worker, reason)
        present = [worker for worker, spare in self._spares.items() if not spare.dismissed]
        missing = len(present) < wanted
        if missing and not loading and not self._closing and now >= self._not_before:
            self._add(now)
        for worker in present[wanted:]:
            self._dismiss(worker)

    async def close(self) -> None:
        """End all spares."""
        self._closing = True
        await asyncio.gather(
            *(worker.shut_down(shutdown_steps.polite(None)) for worker in self.workers)
        )
        await self._tasks.cancel_all()

    def worker_sent(self, worker: Worker, message: WorkerMessage) -> None:
        if (spare := self._spares.get(worker)) is None:
            return
        now = self._loop.time()
        match message:
            case Hello():
                spare.hello = message
                timeout_s = self._in_force.settings.workers.heartbeat_timeout_s
                spare.hang = HangDetector(now, timeout_s, float("inf"))
                self._policy.ready(now)
                self._events.emit("spare", None, pid=worker.pid, change="ready")
            case Heartbeat():
                if spare.hang is not None:
                    spare.hang.heard(now)
            case _:
                self.worker_misbehaved(worker, "it spoke without being asked")

    def worker_misbehaved(self, worker: Worker, reason: str) -> None:
        self._end(worker, reason)

    def worker_outgrew(self, worker: Worker, reason: str) -> None:
        self._end(worker, reason)

    def worker_is_foreign(self, worker: Worker, reason: str) -> None:
        if (spare := self._spares.get(worker)) is not None:
            spare.dismissed = True
        # The next spare would be foreign, too.
        self._useless = True
        self._events.emit("spare", None, pid=worker.pid, change="foreign", reason=reason)
        self._end(worker, f"{reason}. There is none any more until the gateway is restarted")

    def worker_outlived(
        self, worker: Worker, step: shutdown_steps.ShutdownStep, seconds: float
    ) -> None:
        self._events.emit("escalation", None, pid=worker.pid, outlived=str(step), seconds=seconds)

    def worker_ended(self, worker: Worker, status: ExitStatus) -> None:
        spare = self._spares.pop(worker, None)
        if spare is None or spare.dismissed or self._closing:
            return
        decision = self._policy.died(self._loop.time())
        self._not_before = decision.until or 0.0
        self._events.emit(
            "spare",
            None,
            pid=worker.pid,
            change="lost",
            status=str(status),
            verdict=decision.action,
        )

    def _add(self, now: float) -> None:
        try:
            worker = self._start(self)
        except OSError as error:
            self._not_before = self._policy.died(now).until or 0.0
            self._events.emit("spare", None, change="not started", reason=str(error))
            return
        self._spares[worker] = _Spare(now)

    def _dismiss(self, worker: Worker) -> None:
        self._spares[worker].dismissed = True
        self._tasks.start(worker.shut_down(shutdown_steps.polite(None)), f"end spare {worker.pid}")

    def _end(self, worker: Worker, reason: str) -> None:
        logger.error(
            "Spare worker %d is ended: %s", worker.pid, reason, extra=about(pid=worker.pid)
        )
        self._tasks.start(
            worker.shut_down(shutdown_steps.hung(worker.memory.held_bytes)),
            f"end spare {worker.pid}",
        )
