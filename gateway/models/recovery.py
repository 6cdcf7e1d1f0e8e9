"""A hang of a worker, from the suspicion to the next worker:

1. A few times a second the hang detector judges the worker by its last heartbeat and its last step.
2. If the worker hangs, its requests are parked, its stacks are dumped, and SIGKILL ends it.
3. The end of the process is recorded, and the worker's memory is free.
4. The restart policy decides: another worker starts at once, later, or not at all.
5. The life cycle follows this decision. For another worker it asks for memory, as for any load.
6. The next worker gets the parked requests, with the tokens that were delivered.

A worker that dies or breaks the protocol goes the same way from step 2 or 3 on, and so does a load
that fails. The restart policy isn't asked in two cases. If a request is to blame, another worker
starts at once. If an earlier end has stranded memory, no worker starts. Requests are parked by
`gateway.requests.traffic`, and the steps 5 and 6 are those of `gateway.models.load`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from typing import Final

from gateway.models.lifecycle import ModelEvent, State
from gateway.models.model_memory import GatewayParts, ModelParts
from gateway.requests import refusals
from gateway.system.child import ExitStatus
from gateway.system.clock import Timer
from gateway.system.log_lines import about
from gateway.system.notation import format_size
from gateway.system.refusal import Refusal
from gateway.workers.cause_of_death import LastExit, RepeatedDeaths, error_of
from gateway.workers.hang_detector import HangDetector
from gateway.workers.host import THIS_MACHINE
from gateway.workers.restart_policy import RestartAction, RestartDecision, RestartPolicy
from gateway.workers.worker import Worker

logger = logging.getLogger(__name__)

# A fatal error prints the stacks of all threads. The tail must reach back to its first line.
_LOG_TAIL_LINES: Final = 80
# A guard asks its server every two seconds.
_LEAST_STALL_S: Final = 5.0
# The events that end a worker before another start, and their names in `Recovery.restarts_by`.
_CAUSES: Final = {
    ModelEvent.EXIT: "crashed",
    ModelEvent.HUNG: "hung",
    ModelEvent.MISBEHAVED: "misbehaved",
    ModelEvent.LOAD_FAILED: "load failed",
    ModelEvent.DEADLINE: "load too slow",
    ModelEvent.START_FAILED: "not started",
    ModelEvent.OVERGROWN: "overgrown",
    ModelEvent.INVALID: "invalid output",
    ModelEvent.RESTART: "operator",
    ModelEvent.CHANGED: "configuration",
}


class Recovery:
    """The recovery of one model. `restarts` counts starts after deaths. `restarts_by` counts starts
    by the cause of the end before; orders and changes that replace a worker are causes, too.
    """

    def __init__(self, model_id: str, parts: ModelParts, gateway: GatewayParts) -> None:
        self.last_exit: LastExit | None = None
        self.restarts = 0
        self.restarts_by = Counter(dict.fromkeys(_CAUSES.values(), 0))
        self.deaths = RepeatedDeaths(model_id)
        self._model_id = model_id
        self._condition, self._traffic, self._model_memory, self._log, _, _ = parts
        self._in_force = gateway.in_force
        self._events = gateway.events
        self._loop = asyncio.get_running_loop()
        self._detector: HangDetector | None = None
        self._policy = RestartPolicy(gateway.in_force.settings.workers)
        self._cause: ModelEvent | None = None
        self._died = False
        self._excused = False
        self._timer: Timer | None = None

    def entered(self) -> None:
        """Start or end what the entered state needs. A worker sends heartbeats from its hello on.
        Once its model is ready it makes steps whenever there is work. The next attempt to start a
        worker is cancelled unless the state waits for it.
        """
        match self._condition.state:
            case State.LOADING | State.READY:
                self._detector = HangDetector(self._loop.time(), *self._timeouts_s)
            case State.DRAINING:
                pass
            case _:
                self._detector = None
        if self._condition.state not in (State.BACKOFF, State.FAILED):
            self.disarm()
        if self._condition.state is State.READY:
            self._policy.ready(self._loop.time())

    # 1. The hang detector

    def configure(self) -> None:
        """Have the hang detector use the timeouts in force."""
        if self._detector is not None:
            self._detector.set_timeouts(*self._timeouts_s)

    @property
    def _timeouts_s(self) -> tuple[float, float]:
        """The timeouts of heartbeats and of steps, in seconds. The server of a command may be
        silent for longer while it answers.
        """
        workers, model = self._in_force.settings.workers, self._model_memory.model
        stall_s = workers.stall_timeout_s
        if self._condition.state is State.LOADING:
            stall_s = math.inf
        elif model.is_command:
            silence_s = model.settings.silence_s if self._traffic.queue.running else 0.0
            stall_s = max(stall_s, _LEAST_STALL_S, silence_s)
        return workers.heartbeat_timeout_s, stall_s

    def heard(self, *, step: int | None = None, progress: bool = False) -> None:
        """Record a message of the worker: a heartbeat with the engine's `step`, a sign of
        `progress`, or another message.
        """
        if self._detector is None:
            return
        now = self._loop.time()
        if step is not None:
            self._detector.stepped(now, step)
        elif progress:
            self._detector.progressed(now)
        else:
            self._detector.heard(now)

    def check_for_hang(self, worker: Worker, now: float) -> None:
        """End the worker if it hangs. To be called a few times a second."""
        if self._detector is None:
            return
        # Requests that wait for memory make no steps.
        has_work = self._traffic.queue.running > worker.report.short_of_memory
        if self._model_memory.model.is_command:
            # Its steps are its answers on the health path.
            self._detector.set_timeouts(*self._timeouts_s)
            has_work = True
        if (reason := self._detector.judge(now, has_work=has_work)) is not None:
            self._end_hanging(worker, reason)

    # 2. The end of a worker that hangs or misbehaves

    def _end_hanging(self, worker: Worker, reason: str) -> None:
        if worker.followers is not None:
            # Rank 0 may have ended already, while another rank still has to end.
            loss = worker.loss
            reason = f"rank 0 on {THIS_MACHINE}: {reason}" if loss is None else loss.reason
        self.log_error(worker, "hangs", reason)
        self._events.emit("hang", self._model_id, pid=worker.pid, reason=reason)
        self._condition.handle(ModelEvent.HUNG, reason)

    def end_misbehaving(self, worker: Worker, reason: str) -> None:
        self.log_error(worker, "is ended", reason)
        self._condition.handle(ModelEvent.MISBEHAVED, reason)

    def log_error(self, worker: Worker, problem: str, reason: str) -> None:
        logger.error(
            "%s: worker %d %s: %s",
            self._model_id,
            worker.pid,
            problem,
            reason,
            extra=about(model=self._model_id, pid=worker.pid),
        )

    def excuse(self) -> None:
        """Don't count the end of the present worker as a death, as a request is to blame for it."""
        self._excused = True

    # 3. The end of the process

    def worker_ended(self, worker: Worker, status: ExitStatus) -> None:
        """Record the end of a worker's process, and tell the life cycle what follows."""
        ordered = not self._condition.lifecycle.judged
        end_reason = self._condition.end_reason
        self._cause = self._condition.end_cause or (None if ordered else ModelEvent.EXIT)
        expected = ordered and (self._condition.state is State.STOPPING or status.code == 0)
        who = "" if worker.followers is None else f"rank 0 on {THIS_MACHINE} "
        unexpectedly = f"{who}ended unexpectedly while {self._condition.state}"
        reason = (
            (worker.loss and worker.loss.reason)
            or end_reason
            or ("stopped as asked" if expected else unexpectedly)
        )
        self.last_exit = LastExit(
            at=time.time(),
            code=status.code,
            signal=status.signal,
            reason=reason,
            log_tail=self._log.tail(_LOG_TAIL_LINES),
        )
        self._events.emit(
            "exit",
            self._model_id,
            pid=worker.pid,
            incarnation=worker.incarnation,
            expected=expected,
            code=status.code,
            signal=status.signal,
            reason=reason,
        )
        self._model_memory.gone(worker.pid)
        if ordered:
            self._condition.handle(ModelEvent.EXIT)
            return
        # The last line of a guard says how its server ended. An end by order has its reason.
        by_itself = status.code is not None and worker.mark is not None
        by_order = status.code == 0 and end_reason is not None
        explained = worker.loss is not None or by_itself or by_order
        if self._cause is ModelEvent.EXIT and worker.mark is None:
            self._warn_of_repetition(self.last_exit)
        self._decide(
            ModelEvent.EXIT, reason, None if explained else str(status), self.last_exit.log_tail
        )

    def not_started(self, error: Exception) -> None:
        """Tell the life cycle what follows if no worker's process could be started."""
        self._model_memory.gone(None)
        if isinstance(error, FileNotFoundError | PermissionError):
            reason = f"no worker can be started: {error}"
            refusal = Refusal("model_unavailable", f"{self._model_id!r}: {reason}", lasting=True)
            self._condition.handle(ModelEvent.NOT_STARTED, reason, refusal=refusal)
            return
        self._cause = ModelEvent.START_FAILED
        # The system may have descriptors, processes or memory for a worker later.
        logger.error(
            "%s: no worker could be started: %s",
            self._model_id,
            error,
            extra=about(model=self._model_id),
            exc_info=None if isinstance(error, OSError) else error,
        )
        self._decide(ModelEvent.START_FAILED, "it could not be started", str(error), [])

    def _warn_of_repetition(self, end: LastExit) -> None:
        """Tell the operator if workers die of one error again and again. It doesn't matter whether
        a request is to blame: one request ends too few of them.
        """
        error = error_of(end.code, end.signal, end.log_tail)
        if error is None:
            return
        repeated = self.deaths.record(error, self._loop.time(), end.at)
        if repeated is not None:
            reason = f"{repeated}. {repeated.remedy}"
            fields = {"deaths": repeated.deaths, "error": error}
            self._events.emit("caution", self._model_id, reason=reason, **fields)

    # 4. The restart policy

    def _decide(self, event: ModelEvent, reason: str, status: str | None, tail: list[str]) -> None:
        """Decide what follows an unexpected death, and have the life cycle follow the decision."""
        self._died = True
        if self._model_memory.lost_bytes:
            reason += f" (an earlier end has stranded {format_size(self._model_memory.lost_bytes)})"
            decision = RestartDecision(RestartAction.GIVE_UP, None)
        elif event is ModelEvent.EXIT and (self._excused or self._traffic.queue.blamed):
            decision = RestartDecision(RestartAction.RESTART, None)
        else:
            decision = self._ask_policy()
        loss = refusals.lost(
            self._model_id,
            reason,
            status,
            tail,
            self._policy.deaths,
            None if decision.until is None else decision.until - self._loop.time(),
        )
        refusal = Refusal(
            "model_unavailable",
            f"{self._model_id!r} can't be served: {loss}",
            retry_after_s=self.retry_after_s,
        )
        self._condition.handle(event, loss, refusal=refusal, after_death=decision.action)

    def _ask_policy(self) -> RestartDecision:
        """Ask the restart policy, and start the timer of the next attempt if there is to be one."""
        now = self._loop.time()
        self._policy.settings = self._in_force.settings.workers
        decision = self._policy.died(now)
        if decision.until is not None:
            self._timer = Timer(decision.until - now, self._try_again)
            self._events.emit(
                "breaker",
                self._model_id,
                verdict=str(decision.action),
                deaths=self._policy.deaths,
                next_attempt_s=decision.until - now,
            )
        return decision

    @property
    def retry_after_s(self) -> int | None:
        """Whole seconds until the next attempt to start a worker; None: there will be none."""
        if self._timer is None:
            return None
        return max(1, round(self._timer.left_s))

    def _try_again(self) -> None:
        self._timer = None
        self._condition.handle(ModelEvent.RETRY)

    def disarm(self) -> None:
        """Cancel the next attempt to start a worker."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def forget(self) -> None:
        """Forget all deaths, and so close the breaker."""
        self._policy.forget()
        self.deaths.forget()

    # 5. The next worker

    def starting(self) -> None:
        """Count the start that follows, if it is a restart."""
        if self._died:
            self.restarts += 1
        if self._cause in _CAUSES:
            self.restarts_by[_CAUSES[self._cause]] += 1
        self._cause = None
        self._died = self._excused = False
