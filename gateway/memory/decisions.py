"""What admission decides.

Sizes are bytes.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct


class Admit(Struct, frozen=True):
    """It may start; the bytes of its floor are reserved."""

    model_id: str
    floor_bytes: int


class Limit(Struct, frozen=True):
    """It may hold so much from now on: more if something was lent, less if that is called back."""

    model_id: str
    limit_bytes: int
    recall: bool


class Evict(Struct, frozen=True):
    """It has to go, for another or since the budget doesn't hold it any more; nothing is free until
    it is gone.
    """

    model_id: str
    for_model_id: str | None
    busy: bool


class Replace(Struct, frozen=True):
    """It holds more than its limit, the budget has no room for that, and it did not shrink."""

    model_id: str
    footprint_bytes: int
    limit_bytes: int


class Unanswered(Struct, frozen=True):
    """It was told to give memory back and has not said that it does."""

    model_id: str
    seconds: float


class Refuse(Struct, frozen=True):
    """It can't be admitted whatever is evicted. `needed_bytes` are its own and those of the models
    that it is loaded `together` with.
    """

    model_id: str
    needed_bytes: int
    possible_bytes: int
    together: tuple[str, ...] = ()


Decision: TypeAlias = Admit | Limit | Evict | Replace | Unanswered | Refuse
