"""What follows a death that nobody ordered: the judgement, and the timer of the next attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from gateway.config.in_force import InForce
from gateway.events import EventLog
from gateway.supervise.lifecycle import Verdict
from gateway.supervise.restarts import Judgement, RestartPolicy, limits


class Ruling(NamedTuple):
    """`next_attempt_s` is from now; None: at once, or never. `deaths` are those on record."""

    verdict: Verdict
    next_attempt_s: float | None
    deaths: int


class Recovery:
    """One model's. `retry` is called when the time of the next attempt has come."""

    def __init__(
        self,
        model_id: str,
        in_force: InForce,
        events: EventLog,
        retry: Callable[[], None],
    ) -> None:
        self._model_id = model_id
        self._in_force = in_force
        self._policy = RestartPolicy(limits(in_force.settings.workers))
        self._events = events
        self._retry = retry
        self._loop = asyncio.get_running_loop()
        # A timer without delay is none to uvloop, and tells no time.
        self._timer: asyncio.Handle | None = None
        self._retry_at = 0.0

    @property
    def retry_after_s(self) -> int | None:
        """Whole seconds until the next attempt, if there is one."""
        if self._timer is None:
            return None
        return max(1, round(self._retry_at - self._loop.time()))

    def ready(self) -> None:
        """The model is loaded."""
        self._policy.ready(self._loop.time())

    def forget(self) -> None:
        """Close the breaker."""
        self._policy.forget()

    def died(self) -> Ruling:
        """The policy judges, and the next attempt is awaited."""
        now = self._loop.time()
        self._policy.limits = limits(self._in_force.settings.workers)
        judgement = self._policy.died(now)
        if judgement.until is None:
            return self._ruling(judgement, None)
        ruling = self._ruling(judgement, judgement.until - now)
        self._retry_at = judgement.until
        self._timer = self._loop.call_at(judgement.until, self._time_has_come)
        self._events.emit(
            "breaker",
            self._model_id,
            verdict=str(ruling.verdict),
            deaths=ruling.deaths,
            next_attempt_s=ruling.next_attempt_s,
        )
        return ruling

    def excused(self) -> Ruling:
        """Somebody else is to blame for this death: it isn't counted."""
        return self._ruling(Judgement(Verdict.RESTART, None), None)

    def given_up(self) -> Ruling:
        """It isn't started again by itself, whatever the policy would say."""
        return self._ruling(Judgement(Verdict.GIVE_UP, None), None)

    def disarm(self) -> None:
        """No attempt by itself any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ruling(self, judgement: Judgement, next_attempt_s: float | None) -> Ruling:
        return Ruling(judgement.verdict, next_attempt_s, self._policy.deaths)

    def _time_has_come(self) -> None:
        self._timer = None
        self._retry()
