"""Waits with a deadline that a sleep of the machine puts off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.system.clock.countdown import Countdown


async def until_set(event: asyncio.Event, seconds: float) -> bool:
    """Whether it was set in time."""
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
    """A call that comes after so many seconds, unless it is cancelled before."""

    def __init__(self, seconds: float, passed: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._passed = passed
        self._countdown = Countdown(seconds, self._loop.time())
        # A delay of none is no timer to uvloop but a plain handle.
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
