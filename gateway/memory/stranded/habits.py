"""What the lives of a model have shown, for the next of them. No I/O."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final, NamedTuple

from gateway.memory.stranded.account import Account

# The last lives that have shown what they wire.
_LIVES: Final = 8
# Of one kind, before that is called a habit, and by how much more than of the other.
_RESTS: Final = 4
_FAR_MORE: Final = 4
# As many lives as make a share known for certain, if they agree.
_FIRM: Final = 4
# By so much of a footprint may two lives differ and still agree.
_AGREES: Final = 0.1


class Shown(NamedTuple):
    """What the lives of a model have wired of their footprints, and how often they kept that at
    rest.
    """

    model_id: str
    shares: tuple[float, ...]
    rests_kept: int
    rests_fallen: int


class Habits:
    """Shares are of the footprint."""

    def __init__(self, shown: Shown | None = None) -> None:
        """With what an earlier gateway has seen."""
        self._shares: deque[tuple[int, float]] = deque(maxlen=_LIVES)
        self._rests_kept = self._rests_fallen = 0
        if shown is not None:
            self._shares.extend((0, each) for each in shown.shares)
            self._rests_kept, self._rests_fallen = shown.rests_kept, shown.rests_fallen

    def shown(self, model_id: str) -> Shown:
        """For the next gateway."""
        shares = tuple(share for _, share in self._shares)
        return Shown(model_id, shares, self._rests_kept, self._rests_fallen)

    @property
    def share(self) -> float:
        """What it usually wires: all, if nothing is known."""
        return median(share for _, share in self._shares) if self._shares else 1.0

    @property
    def firm(self) -> bool:
        """Enough lives are known, and each of them has wired nearly as much."""
        share = self.share
        agree = all(abs(each - share) <= _AGREES for _, each in self._shares)
        return len(self._shares) >= _FIRM and agree

    @property
    def unwires(self) -> bool:
        """When it stops."""
        return self._rests_fallen >= _RESTS and self._rests_fallen > _FAR_MORE * self._rests_kept

    @property
    def keeps(self) -> bool:
        """What it has wired, when it stops."""
        return self._rests_kept >= _RESTS and self._rests_kept > _FAR_MORE * self._rests_fallen

    def note(self, account: Account) -> None:
        """A life has ended."""
        self._rests_kept += account.rests_kept
        self._rests_fallen += account.rests_fallen
        if account.tells:
            self._shares.append((account.pid, account.share))

    def agree(self, account: Account) -> bool:
        """Half of the other lives have wired as much, or more of which a part was not seen: another
        program that wired while one of them loaded did so rarely.
        """
        others = [share for pid, share in self._shares if pid != account.pid]
        agreeing = sum(each >= account.share - _AGREES for each in others)
        return 2 * agreeing >= len(others)
