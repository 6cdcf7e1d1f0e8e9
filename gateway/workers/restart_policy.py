"""When a model may start again after its worker has died. No I/O; the caller passes the time, in
seconds.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from gateway.config.settings import WorkersSettings


class RestartAction(StrEnum):
    """How a model goes on after an unexpected death of its worker."""

    RESTART = "restart"
    BACK_OFF = "back off"
    GIVE_UP = "give up"


class RestartDecision(NamedTuple):
    """What follows a death. The next start may come at `until`, on the caller's clock; None: at
    once.
    """

    action: RestartAction
    until: float | None


class RestartPolicy:
    """Counts the deaths of a model's workers, and says what follows each death.

    Deaths that are older than the window are forgotten only when a worker dies after it was ready:
    otherwise loads that take longer than the window would be tried for ever. A worker that was
    ready for a whole window clears the record. Once the breaker has opened, the next start is a
    trial: the death of its worker opens the breaker again at once.
    """

    def __init__(
        self, settings: WorkersSettings, jitter: Callable[[], float] = random.random
    ) -> None:
        """`jitter` returns numbers from 0 to 1: 0 leaves a delay as it is, and 1 halves it."""
        self.settings = settings
        self._jitter = jitter
        self._deaths: deque[float] = deque()
        self._backoffs = 0
        self._trial = False
        self._ready_at: float | None = None

    @property
    def deaths(self) -> int:
        """The number of deaths on record."""
        return len(self._deaths)

    def ready(self, now: float) -> None:
        self._ready_at = now

    def died(self, now: float) -> RestartDecision:
        if self._ready_at is not None:
            if now - self._ready_at >= self.settings.restart_window_s:
                self.forget()
            while self._deaths and now - self._deaths[0] > self.settings.restart_window_s:
                self._deaths.popleft()
        self._ready_at = None
        self._deaths.append(now)
        if not self._trial:
            if not self._backoffs and len(self._deaths) <= self.settings.restart_limit:
                return RestartDecision(RestartAction.RESTART, None)
            if self._backoffs < self.settings.backoff_limit:
                return RestartDecision(RestartAction.BACK_OFF, now + self._next_delay_s())
        self._trial = True
        return RestartDecision(RestartAction.GIVE_UP, now + self.settings.breaker_retry_s)

    def forget(self) -> None:
        """Clear the record of deaths, and close the breaker."""
        self._deaths.clear()
        self._backoffs = 0
        self._trial = False

    def _next_delay_s(self) -> float:
        delay_s = min(
            self.settings.backoff_longest_s,
            self.settings.backoff_first_s * 2.0 ** min(self._backoffs, 60),
        )
        self._backoffs += 1
        # Workers that died together shouldn't load together.
        return delay_s * (1.0 - self._jitter() / 2)
