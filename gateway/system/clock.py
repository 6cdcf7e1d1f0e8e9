"""Clocks and deadlines that stand still while the process is absent: asleep, stopped, or stuck.

The event loop's own clock goes on while the machine sleeps, so at the wake all deadlines would have
passed at once. The clocks here count only the time in which the gateway could act. They measure how
long a worker has owed an answer, how long a model was idle, how long a load has waited for memory.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Final

# The longest time between two looks at a clock.
LOOK_S: Final = 1.0
# A longer time between two looks is an absence. A shorter one only means that the process is busy.
_ABSENCE_S: Final = 5.0


class Presence:
    """Measures absences of the caller, who must call `absent_s` every `LOOK_S` at least."""

    def __init__(self, now: float) -> None:
        self._looked_at = now

    def absent_s(self, now: float) -> float:
        """Seconds of absence since the last call; 0.0 if there was no absence."""
        elapsed_s, self._looked_at = now - self._looked_at, now
        return elapsed_s - LOOK_S if elapsed_s > _ABSENCE_S else 0.0


class Countdown:
    """A deadline that each absence puts off by its length."""

    def __init__(self, seconds: float, now: float) -> None:
        self._ends_at = now + seconds
        self._presence = Presence(now)

    def left_s(self, now: float) -> float:
        """Seconds until the deadline, then 0.0. Call this every `LOOK_S` at least."""
        self._ends_at += self._presence.absent_s(now)
        return max(0.0, self._ends_at - now)

    def pause_s(self, now: float) -> float:
        """Seconds to wait before the next call of `left_s`."""
        return min(LOOK_S, self.left_s(now))


class PresentClock:
    """A clock that stands still during absences. Read it every `LOOK_S` at least."""

    def __init__(self, time: Callable[[], float]) -> None:
        """`time` reads a clock, in seconds, that goes on during absences."""
        self._time = time
        self._presence = Presence(time())
        self._away_s = 0.0

    @property
    def away_s(self) -> float:
        """Seconds of all absences, for the `restore` of another process."""
        return self._away_s

    def restore(self, away_s: float) -> None:
        """Continue the clock of an earlier process, so that times of that clock stay valid."""
        self._away_s = away_s

    def now(self) -> float:
        """Seconds, which never run backwards."""
        now = self._time()
        self._away_s += self._presence.absent_s(now)
        return now - self._away_s


_clocks: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, PresentClock]] = (
    weakref.WeakKeyDictionary()
)


def present_clock() -> PresentClock:
    """The clock of the running event loop; each loop has one."""
    loop = asyncio.get_running_loop()
    if loop not in _clocks:
        # The clock of a loop must not keep the loop alive.
        _clocks[loop] = PresentClock(_time_of(weakref.ref(loop)))
    return _clocks[loop]


def _time_of(loop: weakref.ref[asyncio.AbstractEventLoop]) -> Callable[[], float]:
    def time() -> float:
        running = loop()
        assert running is not None
        return running.time()

    return time


async def until_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event. Return whether it was set within `seconds`."""
    loop = asyncio.get_running_loop()
    countdown = Countdown(seconds, loop.time())
    while not event.is_set() and countdown.left_s(loop.time()) > 0.0:
        try:
            async with asyncio.timeout(countdown.pause_s(loop.time())):
                await event.wait()
        except TimeoutError:
            continue
    return event.is_set()


class Timer:
    """Calls `passed` after `seconds`, not counting absences, unless `cancel` is called before."""

    def __init__(self, seconds: float, passed: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._passed = passed
        self._countdown = Countdown(seconds, self._loop.time())
        # For a delay of 0 uvloop gives a plain handle instead of a timer.
        self._handle: asyncio.Handle = self._next_look()

    @property
    def left_s(self) -> float:
        return self._countdown.left_s(self._loop.time())

    def cancel(self) -> None:
        self._handle.cancel()

    def _next_look(self) -> asyncio.Handle:
        return self._loop.call_later(self._countdown.pause_s(self._loop.time()), self._look)

    def _look(self) -> None:
        if self.left_s > 0.0:
            self._handle = self._next_look()
        else:
            self._passed()
