"""What the lives of a model have shown, for the next of them. No I/O."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

from gateway.memory.stranded.account import Account

# The last lives that have shown what they wire.
_LIVES: Final = 8
# By so much of a footprint may two lives differ and still agree.
_AGREES: Final = 0.1


class Habits:
    """Shares are of the footprint. `unwires`: what a worker of the model unwires when it stops it
    was seen to wire again.
    """

    def __init__(self) -> None:
        self.unwires = False
        self._shares: deque[tuple[int, float]] = deque(maxlen=_LIVES)

    @property
    def share(self) -> float:
        """What it usually wires: all, if nothing is known."""
        return median(share for _, share in self._shares) if self._shares else 1.0

    def note(self, account: Account) -> None:
        """A life has ended."""
        if account.tells:
            self._shares.append((account.pid, account.share))

    def agree(self, account: Account) -> bool:
        """Half of the other lives have wired as much: another program that wired while one of them
        loaded did so rarely, and not as much.
        """
        others = [share for pid, share in self._shares if pid != account.pid]
        alike = sum(abs(each - account.share) <= _AGREES for each in others)
        return 2 * alike >= len(others)
