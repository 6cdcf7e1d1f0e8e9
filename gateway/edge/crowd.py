"""How many connections there may be, and who makes place. No I/O."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import Final, Generic, TypeVar

from gateway.edge.reception import Doing

# Beyond the bound, for health checks: an operator must see why nobody else gets in.
SPARE_PLACES: Final = 32

Key = TypeVar("Key", bound=Hashable)


class Place(Enum):
    """What a new connection gets. PROBE: only health checks are answered."""

    FULL = "full"
    PROBE = "probe"
    NONE = "none"


class Crowd(Generic[Key]):
    """The connections by what they are busy with.

    Nobody who is being served is ever ended for a newcomer. Others are, who has been idle for
    longest first: all come from this machine, so an address says nothing of who they are, and
    whoever opens thousands must not be able to keep others out.
    """

    def __init__(self) -> None:
        # Dictionaries keep the order in which keys came in.
        self._among: dict[Doing, dict[Key, None]] = {doing: {} for doing in Doing}
        self._doing: dict[Key, Doing] = {}

    def __len__(self) -> int:
        return len(self._doing)

    def count(self, doing: Doing) -> int:
        return len(self._among[doing])

    def enter(self, key: Key, most: int) -> tuple[Place, Key | None]:
        """Take a newcomer in where there may be so many; also who has to go for that, if
        somebody must. Without a place it is not taken in.
        """
        victim = self._who_makes_place() if len(self) >= most else None
        if victim is not None:
            self.leave(victim)
        if len(self) >= most + SPARE_PLACES:
            return Place.NONE, None
        self._doing[key] = Doing.IDLE
        self._among[Doing.IDLE][key] = None
        return Place.FULL if len(self) <= most else Place.PROBE, victim

    def turn(self, key: Key, doing: Doing) -> None:
        """It is busy with this now. One that has left already stays away."""
        before = self._doing.get(key)
        if before is not None and before is not doing:
            del self._among[before][key]
            self._among[doing][key] = None
            self._doing[key] = doing

    def leave(self, key: Key) -> None:
        before = self._doing.pop(key, None)
        if before is not None:
            del self._among[before][key]

    def _who_makes_place(self) -> Key | None:
        for doing in (Doing.LEAVING, Doing.IDLE, Doing.HEAD, Doing.BODY):
            for key in self._among[doing]:
                return key
        return None
