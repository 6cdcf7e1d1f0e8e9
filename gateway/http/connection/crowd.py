"""How many connections there may be, and who makes place. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from enum import Enum
from typing import Final, Generic, TypeVar

from gateway.http.connection.reception import Doing

# Beyond the bound, for health checks: an operator must see why nobody else gets in.
SPARE_PLACES: Final = 32

Key = TypeVar("Key", bound=Hashable)


class Place(Enum):
    """What a new connection gets. PROBE: only health checks are answered. TOO_MANY: its neighbours
    have as many as they may, and all are being served.
    """

    FULL = "full"
    PROBE = "probe"
    NONE = "none"
    TOO_MANY = "too many"


class Crowd(Generic[Key]):
    """The connections by what they are busy with.

    Nobody who is being served is ever ended for a newcomer. Others are, who has been idle for
    longest first: whoever opens thousands must not be able to keep others out. Those who come from
    one place make place for each other alone, from a bound of their own on.
    """

    def __init__(self) -> None:
        # Dictionaries keep the order in which keys came in.
        self._among: dict[Doing, dict[Key, None]] = {doing: {} for doing in Doing}
        self._doing: dict[Key, Doing] = {}
        self._home: dict[Key, str] = {}
        self._from: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._doing)

    def count(self, doing: Doing) -> int:
        return len(self._among[doing])

    def enter(
        self, key: Key, most: int, home: str | None = None, most_from_there: int = 0
    ) -> tuple[Place, Key | None]:
        """Take a newcomer in where there may be so many; also who has to go for that, if
        somebody must. Without a place it is not taken in. `home` is where it comes from, if there
        is a bound on those.
        """
        if home is not None and self._from[home] >= most_from_there:
            victim = self._who_makes_place(home)
            if victim is None:
                return Place.TOO_MANY, None
        else:
            victim = self._who_makes_place() if len(self) >= most else None
        if victim is not None:
            self.leave(victim)
        if len(self) >= most + SPARE_PLACES:
            return Place.NONE, None
        if home is not None:
            self._home[key] = home
            self._from[home] += 1
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
        home = self._home.pop(key, None)
        if home is not None:
            self._from[home] -= 1
            if not self._from[home]:
                del self._from[home]

    def _who_makes_place(self, home: str | None = None) -> Key | None:
        for doing in (Doing.LEAVING, Doing.HANDSHAKE, Doing.IDLE, Doing.HEAD, Doing.BODY):
            for key in self._among[doing]:
                if home is None or self._home.get(key) == home:
                    return key
        return None
