"""When a model may start again after unexpected deaths.

No I/O; the caller brings the time, in seconds.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from gateway.config.settings import WorkersSettings


class LastExit(Struct, frozen=True):
    """`at` is a Unix time in seconds."""

    at: float
    code: int | None
    signal: str | None
    reason: str
    log_tail: list[str]

    @property
    def how(self) -> str:
        if self.signal:
            return f"by {self.signal}"
        return "with an unknown status" if self.code is None else f"with code {self.code}"


class RestartLimits(NamedTuple):
    """`restarts` within `window_s` come at once; then `backoffs` that double from `first_s` up to
    `longest_s`; then the breaker opens for `retry_s`. Times in seconds.
    """

    restarts: int
    window_s: float
    backoffs: int
    first_s: float
    longest_s: float
    retry_s: float


class RestartVerdict(StrEnum):
    """What follows an unexpected death."""

    RESTART = "restart"
    BACK_OFF = "back off"
    GIVE_UP = "give up"


class Judgement(NamedTuple):
    """`until` is when the next attempt may come, on the caller's clock; None: at once."""

    verdict: RestartVerdict
    until: float | None


class RestartPolicy:
    """Counts deaths and says what follows.

    A death before the model was loaded never leaves the window by age alone: loads that take
    longer than the window would otherwise be tried for ever. A worker that has been ready for a
    whole window clears the record. After the breaker the next start is a trial: its death opens
    the breaker again at once.
    """

    def __init__(self, limits: RestartLimits, jitter: Callable[[], float] = random.random) -> None:
        """`jitter` gives numbers from 0 to 1; a delay is shortened by up to a half of it."""
        self.limits = limits
        self._jitter = jitter
        self._deaths: deque[float] = deque()
        self._backoffs = 0
        self._trial = False
        self._ready_at: float | None = None

    @property
    def deaths(self) -> int:
        """Deaths on record."""
        return len(self._deaths)

    def ready(self, now: float) -> None:
        self._ready_at = now

    def died(self, now: float) -> Judgement:
        if self._ready_at is not None:
            if now - self._ready_at >= self.limits.window_s:
                self.forget()
            while self._deaths and now - self._deaths[0] > self.limits.window_s:
                self._deaths.popleft()
        self._ready_at = None
        self._deaths.append(now)
        if not self._trial:
            if not self._backoffs and len(self._deaths) <= self.limits.restarts:
                return Judgement(RestartVerdict.RESTART, None)
            if self._backoffs < self.limits.backoffs:
                return Judgement(RestartVerdict.BACK_OFF, now + self._next_delay_s())
        self._trial = True
        return Judgement(RestartVerdict.GIVE_UP, now + self.limits.retry_s)

    def forget(self) -> None:
        """Close the breaker."""
        self._deaths.clear()
        self._backoffs = 0
        self._trial = False

    def _next_delay_s(self) -> float:
        delay_s = min(self.limits.longest_s, self.limits.first_s * 2.0 ** min(self._backoffs, 60))
        self._backoffs += 1
        # Workers that died together shouldn't load together.
        return delay_s * (1.0 - self._jitter() / 2)


def restart_limits(settings: WorkersSettings) -> RestartLimits:
    return RestartLimits(
        restarts=settings.restart_limit,
        window_s=settings.restart_window_s,
        backoffs=settings.backoff_limit,
        first_s=settings.backoff_first_s,
        longest_s=settings.backoff_longest_s,
        retry_s=settings.breaker_retry_s,
    )
