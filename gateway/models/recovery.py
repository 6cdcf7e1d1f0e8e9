"""Deals with the end of a worker, and with a load or a drain that takes too long.

The end of a worker is noted, and the worker's memory becomes free. If the end was ordered, the life
cycle knows what follows. Otherwise the end was a death, and gets a verdict: start another worker at
once, start one later, for which a timer runs here, or start none. The restart policy gives the
verdict, with two exceptions. If a request is to blame, another worker starts at once. If an earlier
end has stranded memory, no worker starts. The life cycle follows the verdict, and has the requests
that ran parked: see `gateway.requests.traffic`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.config.tables import InForce
from gateway.models.condition import Condition
from gateway.models.lifecycle import ModelEvent, State
from gateway.models.model_memory import GatewayParts, ModelParts
from gateway.requests import refusals
from gateway.system.child import ExitStatus
from gateway.system.clock import Timer
from gateway.system.log_lines import about
from gateway.system.notation import format_size
from gateway.system.refusal import Refusal
from gateway.workers.cause_of_death import LastExit, RepeatedDeaths, error_of
from gateway.workers.host import THIS_MACHINE
from gateway.workers.restart_policy import RestartAction, RestartPolicy
from gateway.workers.worker import Worker
from gateway.workers.worker_log import WorkerLog

_LOAD_TIMEOUTS: Final = 2


class Deadlines:
    """The deadlines of one model's states. A load that is too slow counts as a death. The second
    such load in a row is a lasting failure.
    """

    def __init__(self, model_id: str, in_force: InForce, condition: Condition) -> None:
        self._model_id = model_id
        self._in_force = in_force
        self._condition = condition
        self._timer: Timer | None = None
        self._load_timeouts = 0

    def entered(self) -> None:
        """Begin the deadline of the state that was entered, or none, instead of the last one."""
        settings = self._in_force.settings
        match self._condition.state:
            case State.STARTING:
                self._arm(settings.workers.load_timeout_s, self._load_too_slow)
            case State.LOADING:
                pass  # The deadline that began with STARTING is for the whole load.
            case State.DRAINING:
                self._arm(settings.gateway.drain_s, self.cut_drain)
            case State.READY:
                self.disarm()
                self._load_timeouts = 0
            case _:
                self.disarm()

    def cut_drain(self) -> None:
        """End a drain now, if there is one."""
        if self._condition.state is State.DRAINING:
            self._condition.handle(ModelEvent.DEADLINE)

    def forget_timeouts(self) -> None:
        """Count loads that are too slow from 0 again."""
        self._load_timeouts = 0

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, seconds: float, passed: Callable[[], None]) -> None:
        self.disarm()
        self._timer = Timer(seconds, passed)

    def _load_too_slow(self) -> None:
        self._load_timeouts += 1
        again = self._load_timeouts >= _LOAD_TIMEOUTS
        seconds = self._in_force.settings.workers.load_timeout_s
        reason = f"it was not loaded within {seconds:g} s (workers.load_timeout_s)"
        self._condition.handle(
            ModelEvent.TOO_SLOW if again else ModelEvent.DEADLINE,
            f"{reason}, twice" if again else reason,
            refusal=refusals.load_too_slow(self._model_id, reason),
        )


# A fatal error prints the stacks of all threads. The tail must reach back to its first line.
_LOG_TAIL_LINES: Final = 80


def last_exit(status: ExitStatus, reason: str, log: WorkerLog) -> LastExit:
    """The record of a worker that has just ended."""
    return LastExit(
        at=time.time(),
        code=status.code,
        signal=status.signal,
        reason=reason,
        log_tail=log.tail(_LOG_TAIL_LINES),
    )


logger = logging.getLogger(__name__)


# The events that end a worker before another start, and their names in `Recovery.restarts_by`.
_CAUSES: Final = {
    ModelEvent.EXIT: "crashed",
    ModelEvent.HUNG: "hung",
    ModelEvent.MISBEHAVED: "misbehaved",
    ModelEvent.LOAD_FAILED: "load failed",
    ModelEvent.DEADLINE: "load too slow",
    ModelEvent.START_FAILED: "not started",
    ModelEvent.OVERGROWN: "overgrown",
    ModelEvent.RESTART: "operator",
    ModelEvent.CHANGED: "configuration",
}


class _Ruling(NamedTuple):
    """A verdict, and the seconds until the next attempt. None: another worker starts at once, or
    none starts.
    """

    verdict: RestartAction
    next_attempt_s: float | None = None


class Recovery:
    """The recovery of one model. `restarts` counts starts after deaths. `restarts_by` counts starts
    by the cause of the end before; orders and changes that replace a worker are causes, too.
    """

    def __init__(self, model_id: str, parts: ModelParts, gateway: GatewayParts) -> None:
        self.last_exit: LastExit | None = None
        self.restarts = 0
        self.restarts_by = Counter(dict.fromkeys(_CAUSES.values(), 0))
        self.deaths = RepeatedDeaths(model_id)
        self._end: ModelEvent | None = None
        self._model_id = model_id
        self._condition, self._traffic, self._model_memory, self._log, _ = parts
        self._in_force = gateway.in_force
        self._events = gateway.events
        self._policy = RestartPolicy(gateway.in_force.settings.workers)
        self._died = False
        self._excused = False
        self._loop = asyncio.get_running_loop()
        self._timer: Timer | None = None

    def starting(self) -> None:
        """Count the start that follows, if it is a restart."""
        if self._died:
            self.restarts += 1
        if self._end in _CAUSES:
            self.restarts_by[_CAUSES[self._end]] += 1
        self._end = None
        self._died = self._excused = False

    def excuse(self) -> None:
        """Don't count the end of the present worker as a death, as a request is to blame for it."""
        self._excused = True

    def ended(self, worker: Worker, status: ExitStatus) -> None:
        """Record the end of a worker's process, and tell the life cycle what follows."""
        ordered = not self._condition.lifecycle.judged
        self._end = self._condition.end_cause or (None if ordered else ModelEvent.EXIT)
        expected = ordered and (self._condition.state is State.STOPPING or status.code == 0)
        who = "" if worker.followers is None else f"rank 0 on {THIS_MACHINE} "
        reason = (
            (worker.loss and worker.loss.reason)
            or self._condition.end_reason
            or (
                "stopped as asked"
                if expected
                else f"{who}ended unexpectedly while {self._condition.state}"
            )
        )
        self.last_exit = last_exit(status, reason, self._log)
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
        else:
            # The last line of a guard says how its server ended. An end by order has its reason.
            by_itself = status.code is not None and worker.mark is not None
            by_order = status.code == 0 and self._condition.end_reason is not None
            told = worker.loss is not None or by_itself or by_order
            how = None if told else str(status)
            if self._end is ModelEvent.EXIT and worker.mark is None:
                self._look_for_repetition(self.last_exit)
            self._judge(ModelEvent.EXIT, reason, how, self.last_exit.log_tail)

    def not_started(self, error: Exception) -> None:
        """Tell the life cycle what follows if no worker's process could be started."""
        self._model_memory.gone(None)
        if isinstance(error, FileNotFoundError | PermissionError):
            reason = f"no worker can be started: {error}"
            refusal = Refusal("model_unavailable", f"{self._model_id!r}: {reason}", lasting=True)
            self._condition.handle(ModelEvent.NOT_STARTED, reason, refusal=refusal)
            return
        self._end = ModelEvent.START_FAILED
        # The system may have descriptors, processes or memory for a worker later.
        logger.error(
            "%s: no worker could be started: %s",
            self._model_id,
            error,
            extra=about(model=self._model_id),
            exc_info=None if isinstance(error, OSError) else error,
        )
        self._judge(ModelEvent.START_FAILED, "it could not be started", str(error), [])

    @property
    def retry_after_s(self) -> int | None:
        """Whole seconds until the next attempt to start a worker; None: there will be none."""
        if self._timer is None:
            return None
        return max(1, round(self._timer.left_s))

    def entered(self) -> None:
        """Cancel the next attempt unless the entered state waits for it. Note when the model is
        ready.
        """
        if self._condition.state not in (State.BACKOFF, State.FAILED):
            self.disarm()
        if self._condition.state is State.READY:
            self._policy.ready(self._loop.time())

    def forget(self) -> None:
        """Forget all deaths, and so close the breaker."""
        self._policy.forget()
        self.deaths.forget()

    def disarm(self) -> None:
        """Cancel the next attempt to start a worker."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_for_repetition(self, end: LastExit) -> None:
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

    def _judge(self, event: ModelEvent, reason: str, status: str | None, tail: list[str]) -> None:
        """Decide what follows an unexpected death."""
        self._died = True
        if self._model_memory.lost_bytes:
            reason += f" (an earlier end has stranded {format_size(self._model_memory.lost_bytes)})"
            ruling = _Ruling(RestartAction.GIVE_UP)
        elif event is ModelEvent.EXIT and (self._excused or self._traffic.queue.guilty):
            ruling = _Ruling(RestartAction.RESTART)
        else:
            ruling = self._rule()
        loss = refusals.lost(
            self._model_id, reason, status, tail, self._policy.deaths, ruling.next_attempt_s
        )
        refusal = Refusal(
            "model_unavailable",
            f"{self._model_id!r} can't be served: {loss}",
            retry_after_s=self.retry_after_s,
        )
        self._condition.handle(event, loss, refusal=refusal, verdict=ruling.verdict)

    def _rule(self) -> _Ruling:
        """Ask the restart policy, and start the timer of the next attempt if there is to be one."""
        now = self._loop.time()
        self._policy.settings = self._in_force.settings.workers
        decision = self._policy.died(now)
        if decision.until is None:
            return _Ruling(decision.action)
        ruling = _Ruling(decision.action, decision.until - now)
        self._timer = Timer(decision.until - now, self._try_again)
        self._events.emit(
            "breaker",
            self._model_id,
            verdict=str(ruling.verdict),
            deaths=self._policy.deaths,
            next_attempt_s=ruling.next_attempt_s,
        )
        return ruling

    def _try_again(self) -> None:
        self._timer = None
        self._condition.handle(ModelEvent.RETRY)
