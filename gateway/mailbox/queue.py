"""Background answers that wait for their turn. No I/O; times are Unix times in seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from msgspec import Struct

from gateway.mailbox.entry import Name
from gateway.requests.queue import QueueFullError

# Behind everybody who waits for an answer.
LOWEST_PRIORITY: Final = -1000


class Turn(Struct, frozen=True):
    """Somebody's place in the queue."""

    name: Name
    model: str
    priority: int
    deadline_at: float


class BackgroundQueue:
    """By priority, then first come, first served; each model makes so many at a time."""

    def __init__(self) -> None:
        self._waiting: list[Turn] = []
        self._running: dict[Name, Turn] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def add(self, turn: Turn, depth: int) -> None:
        """Raises: QueueFullError: as many wait already as may."""
        if len(self._waiting) >= depth:
            raise QueueFullError
        self.restore(turn)

    def restore(self, turn: Turn) -> None:
        """Take in what was accepted before, however many there are."""
        place = len(self._waiting)
        while place and self._waiting[place - 1].priority < turn.priority:
            place -= 1
        self._waiting.insert(place, turn)

    @property
    def owners(self) -> Counter[str]:
        """How many of each owner's wait."""
        return Counter(owner for owner, _ in (each.name for each in self._waiting))

    def next(
        self, concurrency: int, without: Collection[str] = (), spent: Collection[str] = ()
    ) -> Turn | None:
        """Who runs from now on, if anybody may; nobody of the models in `without`, or of the owners
        in `spent`.
        """
        busy = Counter(each.model for each in self._running.values())
        for place, turn in enumerate(self._waiting):
            owner, _ = turn.name
            if owner in spent or turn.model in without:
                continue
            if busy[turn.model] < concurrency:
                del self._waiting[place]
                self._running[turn.name] = turn
                return turn
        return None

    def waits(self, name: Name) -> bool:
        return any(each.name == name for each in self._waiting)

    def runs(self, name: Name) -> bool:
        return name in self._running

    def take(self, name: Name) -> bool:
        """Let it run before its turn, whatever else does; False: it doesn't wait."""
        for place, turn in enumerate(self._waiting):
            if turn.name == name:
                del self._waiting[place]
                self._running[name] = turn
                return True
        return False

    def put_back(self, name: Name) -> bool:
        """It couldn't run after all: it is the first of its priority again. False: it didn't."""
        if (turn := self._running.pop(name, None)) is None:
            return False
        place = 0
        while place < len(self._waiting) and self._waiting[place].priority > turn.priority:
            place += 1
        self._waiting.insert(place, turn)
        return True

    def remove(self, name: Name) -> None:
        """Forget it, wherever it is."""
        self._running.pop(name, None)
        self._waiting = [each for each in self._waiting if each.name != name]

    def take_overdue(self, now: float) -> list[Turn]:
        """Who has waited until the deadline; they run from now on, to be told."""
        overdue = [each for each in self._waiting if each.deadline_at <= now]
        for turn in overdue:
            self.take(turn.name)
        return overdue
