"""When a model was used last, and for how long that shall keep it loaded."""

from __future__ import annotations

import time

from msgspec import Struct

from gateway.system.clock import present_clock


class UseState(Struct, frozen=True):
    """What another gateway goes on from."""

    last_at: float | None
    last: float
    keep_alive_s: float | None


class Use:
    """`last_at` is a Unix time, `last` the same moment on the `PresentClock`; both in seconds.
    `keep_alive_s` is what the last request asked for.
    """

    def __init__(self) -> None:
        self.last_at: float | None = None
        self.last = 0.0
        self.keep_alive_s: float | None = None
        self._clock = present_clock()

    def note(self, keep_alive_s: float | None) -> None:
        self.keep_alive_s = keep_alive_s
        self.last_at = time.time()
        self.last = self._clock.now()

    @property
    def state(self) -> UseState:
        return UseState(self.last_at, self.last, self.keep_alive_s)

    def restore(self, state: UseState) -> None:
        """Go on from what an earlier gateway knew."""
        self.last_at = state.last_at
        self.last = state.last
        self.keep_alive_s = state.keep_alive_s
