"""How much was taken within the last minute. No I/O; the caller brings the time."""

from __future__ import annotations

from collections import deque
from typing import Final

MINUTE_S: Final = 60.0
# What is taken within one step leaves together, when the last of it is a minute old: that bounds
# what is kept, and never lets more through.
STEP_S: Final = 0.25


class Window:
    """Amounts, each counted for a minute and at most a step more. Times are in seconds of one clock
    that doesn't go back.
    """

    def __init__(self) -> None:
        # Steps by their numbers, with what was taken in each.
        self._steps: deque[tuple[int, int]] = deque()
        self._taken = 0

    def add(self, now: float, amount: int) -> None:
        step = int(now // STEP_S)
        self._taken += amount
        if self._steps and self._steps[-1][0] == step:
            amount += self._steps.pop()[1]
        self._steps.append((step, amount))

    def taken(self, now: float) -> int:
        while self._steps and _left_at(self._steps[0][0]) <= now:
            self._taken -= self._steps.popleft()[1]
        return self._taken

    def below_s(self, now: float, limit: int) -> float:
        """In how many seconds less than this will be counted, if nothing is added."""
        taken = self.taken(now)
        for step, amount in self._steps:
            if taken < limit:
                break
            taken -= amount
            if taken < limit:
                return _left_at(step) - now
        return 0.0


def _left_at(step: int) -> float:
    return (step + 1) * STEP_S + MINUTE_S
