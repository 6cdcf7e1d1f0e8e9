"""How long an engine that has nothing to do waits for requests that come along with the first.

Rows whose prompts are computed together join the batch together: each group that joins costs a copy
of all the caches in it.
"""

from __future__ import annotations

from typing import Final

# For a second one, which most requests don't have.
_ALONE_S: Final = 0.002
# For another one, once there are two.
_QUIET_S: Final = 0.01
_MOST_S: Final = 0.05


class Gathering:
    """One group. Times are seconds on the caller's clock."""

    def __init__(self, now: float, most: int) -> None:
        """It begins with one request; more than `most` aren't computed together."""
        self._most = most
        self._there = 1
        self._until = now + _MOST_S
        self._quiet_until = now + _ALONE_S

    def add(self, now: float) -> None:
        """Another one has come."""
        self._there += 1
        self._quiet_until = now + _QUIET_S

    def left_s(self, now: float, arriving: int) -> float:
        """How long to wait for the next one; 0: not any more. `arriving` are in tokenization."""
        if self._there >= self._most:
            return 0.0
        until = self._until if arriving else min(self._until, self._quiet_until)
        return max(0.0, until - now)
