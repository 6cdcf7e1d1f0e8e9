"""Time that passes only while the gateway looks. No I/O; the caller brings the time, in seconds.

The event loop's clock goes on while the machine sleeps. By that clock everything that waited is
too late at the wake, all at once, although nobody had a chance to be in time.
"""

from __future__ import annotations

from typing import Final

# How often to look.
LOOK_S: Final = 1.0
# Whoever looks later than this was stopped or asleep, and not only busy.
_ABSENCE_S: Final = 5.0


class Presence:
    """Whether the caller was there, who looks every `LOOK_S` at least."""

    def __init__(self, now: float) -> None:
        self._looked_at = now

    def absent_s(self, now: float) -> float:
        """How long it was away since it looked last; 0.0 if it wasn't."""
        elapsed_s, self._looked_at = now - self._looked_at, now
        return elapsed_s - LOOK_S if elapsed_s > _ABSENCE_S else 0.0


class Countdown:
    """A deadline that an absence puts off."""

    def __init__(self, seconds: float, now: float) -> None:
        self._ends_at = now + seconds
        self._presence = Presence(now)

    def left_s(self, now: float) -> float:
        """To be asked every `LOOK_S` at least; 0.0 once it is over."""
        self._ends_at += self._presence.absent_s(now)
        return max(0.0, self._ends_at - now)

    def pause_s(self, now: float) -> float:
        """When to ask again."""
        return min(LOOK_S, self.left_s(now))
