"""Who gets how much of what is free: by priority, and fairly among equals.

No I/O and no clock here; sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from msgspec import Struct


class Borrower(Struct, frozen=True):
    """A model that could use `wanted_bytes` beyond its floor."""

    model_id: str
    priority: int
    wanted_bytes: int


def shares(pool_bytes: int, borrowers: Iterable[Borrower]) -> dict[str, int]:
    """What each should have lent of a pool.

    A higher priority is served before a lower one. Among equals it is max-min fair: nobody gets
    more than it wants, and nobody has less than another while it wants more (Bertsekas, Gallager:
    Data Networks, 6.5.2).
    """
    result: dict[str, int] = {}
    left_bytes = max(0, pool_bytes)
    in_order = sorted(borrowers, key=lambda each: (-each.priority, each.wanted_bytes))
    for _, group in groupby(in_order, key=lambda each: each.priority):
        equals = list(group)
        for index, each in enumerate(equals):
            share = min(each.wanted_bytes, left_bytes // (len(equals) - index))
            result[each.model_id] = share
            left_bytes -= share
    return result
