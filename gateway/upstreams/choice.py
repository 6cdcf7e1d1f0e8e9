"""Which of several upstreams gets a request for a model that all of them have. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

# From those that answer at once to those that must load first. A server without states has its
# models loaded mostly, but may be any.
_RANKS: Final = {"ready": 0, None: 1, "loading": 2, "starting": 2, "waiting": 3, "unloaded": 3}
_UNWILLING: Final = 4


class Candidate(Struct, frozen=True):
    """An upstream for a request. `load` counts the requests that run and wait there. `chosen_at`
    is when it was chosen last, and `busy` whether it has just asked for patience.
    """

    upstream: str
    state: str | None
    load: int
    chosen_at: float
    busy: bool = False


def ranked(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates, the best first: those that aren't busy, with the model loaded, with the least
    load, and of equal ones the one whose last turn is the longest ago.
    """

    def order(each: Candidate) -> tuple[bool, int, int, float]:
        return each.busy, _RANKS.get(each.state, _UNWILLING), each.load, each.chosen_at

    return sorted(candidates, key=order)
