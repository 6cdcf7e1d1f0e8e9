"""The turns of the sharers of a model: the sharer with the fewest seconds for its share is next. No
I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from msgspec import Struct

# No key and no address has this name.
OTHERS: Final = "(others)"
# Sharers that are remembered, unless more have requests at the same time.
_MOST: Final = 64
# Before anything is measured. A worse guess puts one request in the wrong order.
_FIRST_PACE_S: Final = 0.001
# A measurement counts so much less with each further one.
_FADING: Final = 0.9


class SharerState(Struct, frozen=True):
    """A sharer, as the next gateway takes it over."""

    name: str
    share: int
    had_s: float
    cost_s: float


class Sharer:
    """One who shares a model: the name of a key, or the address of a client without a key.

    `cost_s` are the seconds of the model that its requests took. Turns follow from `had_s`, which
    are seconds divided by the share. A sharer that comes back after a pause starts at the `had_s`
    of the others.
    """

    def __init__(self, share: int, had_s: float) -> None:
        self.share = share
        self.had_s = had_s
        self.cost_s = 0.0
        # Seconds that its running requests are likely to take, until they are measured.
        self.expected_s = 0.0
        # Of these, the seconds that the next measurement has.
        self.due_s = 0.0

    @property
    def turn_s(self) -> float:
        """The sharer with the lowest number has the next turn."""
        return self.had_s + (self.expected_s + self.due_s) / self.share


class FairShares:
    """The seconds of a model that each sharer had. The sharer with the fewest seconds for its share
    is the next. So sharers that always have requests get seconds in proportion to their shares.

    A request counts with its likely seconds once it is sent, and later with the seconds that the
    worker has measured. A sharer without requests saves nothing: at its return it starts at the
    seconds of the others. A sharer that had more seconds than its share owes them until the others
    have caught up, or until no sharer has a request.
    """

    def __init__(self) -> None:
        self._sharers: dict[str, Sharer] = {}
        # The `had_s` with which sharers come, or come back.
        self._now_s = 0.0
        self._present: Mapping[str, int] = {}
        self._others_s = 0.0
        self._measured_s = 0.0
        self._measured_tokens = 0.0
        self._new_tokens = 0

    def meet(self, present: Mapping[str, int]) -> None:
        """Learn which sharers have requests now. `present` has their shares, by name."""
        self._advance([name for name in present if name in self._present])
        for name, share in present.items():
            sharer = self._sharers.get(name)
            if sharer is None:
                sharer = self._sharers[name] = Sharer(share, self._now_s)
            elif name not in self._present:
                sharer.had_s = max(sharer.had_s, self._now_s)
            sharer.share = share
        self._present = dict(present)
        if not present:
            self._now_s = max([self._now_s, *(sharer.had_s for sharer in self._sharers.values())])
            for sharer in self._sharers.values():
                sharer.expected_s = sharer.due_s = 0.0
        self._forget()

    def _advance(self, staying: list[str]) -> None:
        least_s = min((self._sharers[name].had_s for name in staying), default=self._now_s)
        self._now_s = max(self._now_s, least_s)

    def turn_s(self, name: str) -> float:
        """The number of a sharer that has requests; the lowest number has the next turn."""
        return self._sharers[name].turn_s

    def part_of(self, name: str) -> float:
        """The part of all places, from 0 to 1, that a sharer with requests may have."""
        return self._present[name] / sum(self._present.values())

    def likely_s(self, tokens: int) -> float:
        """The seconds that a request with so many tokens in its prompt is likely to take."""
        if self._measured_s <= 0.0 or self._measured_tokens < 1.0:
            return tokens * _FIRST_PACE_S
        return tokens * self._measured_s / self._measured_tokens

    def expect(self, name: str, seconds: float) -> None:
        """Record that a request was sent that is likely to take so long."""
        self._sharers[name].expected_s += seconds

    def await_measurement(self, name: str, seconds: float) -> None:
        """Record that the next measurement has the seconds that were expected of a request."""
        if (sharer := self._sharers.get(name)) is not None:
            sharer.expected_s = max(0.0, sharer.expected_s - seconds)
            sharer.due_s += seconds

    def count(self, tokens: int) -> None:
        """Record tokens that were computed, whose seconds the next measurement has."""
        self._new_tokens += tokens

    def charge(self, seconds: Mapping[str, float]) -> None:
        """Take in measured seconds, by the names of sharers. Unknown names are ignored."""
        for sharer in self._sharers.values():
            sharer.due_s = 0.0
        for name, taken_s in seconds.items():
            if (charged := self._sharers.get(name)) is not None:
                charged.had_s += taken_s / charged.share
                charged.cost_s += taken_s
        self._measured_s = self._measured_s * _FADING + sum(seconds.values())
        self._measured_tokens = self._measured_tokens * _FADING + self._new_tokens
        self._new_tokens = 0

    def charge_opaque(self, seconds: Mapping[str, float]) -> None:
        """Take in measured seconds, by the sharers' names for workers."""
        names = {opaque(name): name for name in self._sharers}
        self.charge({names[name]: taken for name, taken in seconds.items() if name in names})

    @property
    def costs(self) -> dict[str, float]:
        """The seconds of the model that each sharer took since the gateway's start. Of more sharers
        than are remembered, and of forgotten ones, the sum is under `OTHERS`.
        """
        by_cost = sorted(self._sharers.items(), key=lambda pair: -pair[1].cost_s)
        by_name = {name: sharer.cost_s for name, sharer in by_cost[:_MOST]}
        others_s = self._others_s + sum(sharer.cost_s for _, sharer in by_cost[_MOST:])
        return by_name | {OTHERS: others_s} if others_s else by_name

    @property
    def in_turn(self) -> list[str]:
        """The remembered sharers: those that have requests, the next one first, then the others."""
        present = sorted(self._present, key=self.turn_s)
        return present + [sharer for sharer in self._sharers if sharer not in self._present]

    def sharer(self, name: str) -> Sharer:
        """A remembered sharer."""
        return self._sharers[name]

    @property
    def state(self) -> tuple[SharerState, ...]:
        return tuple(
            SharerState(name, sharer.share, sharer.had_s - self._now_s, sharer.cost_s)
            for name, sharer in self._sharers.items()
        )

    def restore(self, state: tuple[SharerState, ...]) -> None:
        """Go on from the state of an earlier gateway."""
        for sharer_state in state:
            sharer = Sharer(sharer_state.share, sharer_state.had_s)
            sharer.cost_s = sharer_state.cost_s
            self._sharers[sharer_state.name] = sharer

    def _forget(self) -> None:
        """Forget sharers without requests that are too many: first those that had the least."""
        surplus = len(self._sharers) - _MOST
        if surplus <= 0:
            return
        idle = sorted(
            (name for name in self._sharers if name not in self._present),
            key=lambda name: self._sharers[name].had_s,
        )
        for name in idle[:surplus]:
            self._others_s += self._sharers.pop(name).cost_s


def opaque(name: str) -> str:
    """A sharer's name for workers, which tells them nothing of keys and addresses."""
    return blake2b(name.encode(), digest_size=8).hexdigest() if name else ""
