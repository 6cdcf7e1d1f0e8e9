"""Verdicts on a worker: whether it hangs, and when its model may start again after it has died. An
unanswered recall is judged in `gateway.memory.admission_round`. No I/O; the caller passes the time,
in seconds.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct

from gateway.config.settings import WorkersSettings


class LastExit(Struct, frozen=True):
    """How the last worker of a model has ended. `at` is a Unix time in seconds."""

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


class RestartVerdict(StrEnum):
    """How a model goes on after an unexpected death of its worker."""

    RESTART = "restart"
    BACK_OFF = "back off"
    GIVE_UP = "give up"


class Judgement(NamedTuple):
    """The verdict on a death. The next start may come at `until`, on the caller's clock; None: at
    once.
    """

    verdict: RestartVerdict
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

    def died(self, now: float) -> Judgement:
        if self._ready_at is not None:
            if now - self._ready_at >= self.settings.restart_window_s:
                self.forget()
            while self._deaths and now - self._deaths[0] > self.settings.restart_window_s:
                self._deaths.popleft()
        self._ready_at = None
        self._deaths.append(now)
        if not self._trial:
            if not self._backoffs and len(self._deaths) <= self.settings.restart_limit:
                return Judgement(RestartVerdict.RESTART, None)
            if self._backoffs < self.settings.backoff_limit:
                return Judgement(RestartVerdict.BACK_OFF, now + self._next_delay_s())
        self._trial = True
        return Judgement(RestartVerdict.GIVE_UP, now + self.settings.breaker_retry_s)

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


# If the time between two calls of `judge` is longer than this part of the shorter timeout, this
# process was stopped or asleep.
_ABSENCE: Final = 0.25
_SHORTEST_ABSENCE_S: Final = 0.5
# Workers send a heartbeat every second: a silence shorter than two seconds proves nothing.
_SHORTEST_SILENCE_S: Final = 2.0


class HangDetector:
    """Judges one worker, which has a model or is to get one, by two signs of life.

    Heartbeats come from a thread that never computes. When they stop, the process is stopped or its
    I/O is stuck. Progress comes from the engine. When it stops although there is work, the GPU is
    wedged. Each chunk of a prompt is progress, and takes a limited time, so a long prompt is no
    hang.
    """

    def __init__(self, now: float, heartbeat_timeout_s: float, stall_timeout_s: float) -> None:
        self.set_timeouts(heartbeat_timeout_s, stall_timeout_s)
        self._heard_at = self._progress_at = self._judged_at = now
        self._step: int | None = None

    def set_timeouts(self, heartbeat_timeout_s: float, stall_timeout_s: float) -> None:
        self._heartbeat_timeout_s = max(heartbeat_timeout_s, _SHORTEST_SILENCE_S)
        self._stall_timeout_s = stall_timeout_s
        shorter_s = min(heartbeat_timeout_s, stall_timeout_s)
        self._absence_s = max(_SHORTEST_ABSENCE_S, shorter_s * _ABSENCE)

    def heard(self, now: float) -> None:
        """Note a message of any kind."""
        self._heard_at = now

    def progressed(self, now: float) -> None:
        """Note that the engine did something for a request."""
        self._heard_at = self._progress_at = now

    def stepped(self, now: float, step: int) -> None:
        """Note a heartbeat with the engine's step counter."""
        self._heard_at = now
        if step != self._step:
            self._step = step
            self._progress_at = now

    def silence_s(self, now: float) -> float:
        return now - self._heard_at

    def judge(self, now: float, *, has_work: bool) -> str | None:
        """Why the worker counts as hung; None: it doesn't. To be called a few times a second."""
        absent = now - self._judged_at > self._absence_s
        self._judged_at = now
        if absent:
            # Messages that came during the absence are still unread.
            self._heard_at = self._progress_at = now
            return None
        if not has_work:
            self._progress_at = now
        if now - self._heard_at >= self._heartbeat_timeout_s:
            return (
                f"no heartbeat for {now - self._heard_at:.1f} s (workers.heartbeat_timeout_s is "
                f"{self._heartbeat_timeout_s:g}): the process is stopped or stuck"
            )
        if now - self._progress_at >= self._stall_timeout_s:
            return (
                f"no engine step for {now - self._progress_at:.1f} s although there is work "
                f"(workers.stall_timeout_s is {self._stall_timeout_s:g})"
            )
        return None
