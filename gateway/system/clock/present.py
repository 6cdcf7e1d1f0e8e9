"""A clock that stands still while the gateway doesn't look: asleep, stopped, or kept from its loop.

What is measured by it takes as long as somebody was there to do something about it: how long a
worker has owed an answer, how long a model was idle, how long somebody has waited for memory. At a
wake nothing of that is over all at once.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Final

from gateway.system.clock.countdown import Presence


class PresentClock:
    """To be read every `gateway.system.clock.countdown.LOOK_S` at least."""

    def __init__(self, time: Callable[[], float]) -> None:
        """`time` goes on meanwhile; seconds."""
        self._time = time
        self._presence = Presence(time())
        self._away_s = 0.0

    @property
    def away_s(self) -> float:
        """For another process, whose `restore` takes it."""
        return self._away_s

    def restore(self, away_s: float) -> None:
        """Go on with the clock of an earlier process, whose times come along."""
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
    """That of the running event loop: all who ask have the same time."""
    loop = asyncio.get_running_loop()
    if loop not in _clocks:
        # What is kept for a loop must not keep it.
        _clocks[loop] = PresentClock(_time_of(weakref.ref(loop)))
    return _clocks[loop]


def _time_of(loop: weakref.ref[asyncio.AbstractEventLoop]) -> Callable[[], float]:
    def time() -> float:
        running = loop()
        assert running is not None
        return running.time()

    return time
