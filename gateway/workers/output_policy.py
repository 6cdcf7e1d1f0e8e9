"""How an answer is tried again whose logits weren't valid: not finite, or all the same. No I/O.

An answer is computed three times at most, each time in another way. First the worker computes it
again by itself, without cached blocks. Then a fresh worker does, which is plain: it has no
quantized caches, and makes no guesses. A plain worker stays plain until it ends. It isn't replaced
for an answer that isn't valid in it either. So a model whose answers are never valid starts one
worker more, not one for each request.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class NextTry(StrEnum):
    """How an answer is tried next."""

    COLD = "in the same worker, without cached blocks"
    PLAIN = "in a fresh worker, with unquantized caches and without guesses"
    NONE = "not again"


class FailedTry(NamedTuple):
    """A try whose logits weren't valid. `goes_on`: the worker computes the answer again by itself.
    `plain`: the worker is plain.
    """

    goes_on: bool
    plain: bool


TABLE: Final[dict[FailedTry, NextTry]] = {
    FailedTry(goes_on=True, plain=False): NextTry.COLD,
    FailedTry(goes_on=True, plain=True): NextTry.COLD,
    FailedTry(goes_on=False, plain=False): NextTry.PLAIN,
    FailedTry(goes_on=False, plain=True): NextTry.NONE,
}


class OutputPolicy:
    """Decides on the tries of one model's answers. `plain`: the present worker, or the one that is
    about to start, is plain.
    """

    def __init__(self) -> None:
        self.plain = False
        self._plain_next = False

    def failed(self, *, goes_on: bool) -> NextTry:
        """Take in a try whose logits weren't valid. With `PLAIN` the next worker is plain."""
        next_try = TABLE[FailedTry(goes_on, self.plain)]
        self._plain_next |= next_try is NextTry.PLAIN
        return next_try

    def starting(self) -> None:
        """A worker is about to start."""
        self.plain = self._plain_next

    def ready(self) -> None:
        """The worker is ready, so the one after it isn't plain."""
        self._plain_next = False

    def given_up(self) -> None:
        """The model has no worker, and none is about to start."""
        self.plain = self._plain_next = False
