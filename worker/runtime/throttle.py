"""When the gateway hears of what steps have made."""

from __future__ import annotations

from typing import Final

# At most sixty times a second: no screen shows more, and each time wakes threads here, the gateway
# and every client. Slower engines than that don't notice.
_BETWEEN_S: Final = 1 / 60


class Beat:
    """The sender tells of several steps of a fast engine at once, of all streams together. Its
    thread calls everything but `wakes`, which is for the engine's. Times are seconds on a clock
    that both read.
    """

    def __init__(self) -> None:
        self._next_at = 0.0
        self._looks = False

    def look(self, now: float) -> None:
        """The sender is about to take all that there is."""
        if now >= self._next_at:
            self._looks = False

    def strike(self, now: float) -> None:
        """It has told of steps, and looks again for more."""
        self._next_at = now + _BETWEEN_S
        self._looks = True

    def left_s(self, now: float) -> float | None:
        """Until it looks by itself; None: only when it is woken."""
        return max(0.0, self._next_at - now) if self._looks else None

    def wakes(self, now: float, *, awaited: bool) -> bool:
        """Whether it is to be woken for a step that is there for it now. What is `awaited` waits
        for no beat.
        """
        return awaited or now >= self._next_at
