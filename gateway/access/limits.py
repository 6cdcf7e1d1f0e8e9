"""What one key may do in a minute, and at once. No I/O; the caller brings the time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from gateway.access.api_key import Terms
from gateway.access.seat import Seat
from gateway.access.window import Window

# A running request may end at any time.
_AGAIN_S: Final = 1


class Denial(Struct, frozen=True):
    """What its key has, so that a request must wait, and for how long; None: for ever."""

    reason: str
    retry_after_s: int | None


class Limits:
    """Requests are counted when they come in, tokens as they are computed: the answer that goes
    beyond the limit is finished, and the next ones wait.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._seats: set[Seat] = set()
        self._requests = Window()
        self._tokens = Window()

    def admit(self, now: float) -> Seat | Denial:
        """Take a request in, or say why not."""
        terms = self.terms
        if (denial := self.short_of(1)) is not None:
            return denial
        if terms.rpm is not None and self._requests.taken(now) >= terms.rpm:
            wait_s = self._requests.below_s(now, terms.rpm)
            return Denial(f"has had its {terms.rpm} requests a minute", _whole(wait_s))
        if terms.tpm is not None and self.exhausted(now):
            wait_s = self._tokens.below_s(now, terms.tpm)
            return Denial(f"has had its {terms.tpm} tokens a minute", _whole(wait_s))
        self._requests.add(now, 1)
        return self.seat()

    def seat(self) -> Seat:
        """For what was accepted before, however many there are."""
        seat = Seat(self)
        self._seats.add(seat)
        return seat

    def short_of(self, places: int, held: int = 0) -> Denial | None:
        """Why somebody who has some can't have so many places in all; None: there are so many."""
        most = self.terms.concurrent
        taken = sum(each.places for each in self._seats) - held
        if most is None or taken + places <= max(most, held):
            return None
        if places > most:
            return Denial(f"may have {most} answers at once, and this asks for {places}", None)
        return Denial(f"has {most} answers at once already, as many as it may have", _AGAIN_S)

    def leave(self, seat: Seat) -> None:
        self._seats.discard(seat)

    def exhausted(self, now: float) -> bool:
        """What was computed within a minute, and is being computed, is as much as may be."""
        return self.terms.tpm is not None and self._spent(now) >= self.terms.tpm

    def spend(self, now: float, tokens: int) -> None:
        """Tokens of an answer that is over."""
        self._tokens.add(now, tokens)

    def _spent(self, now: float) -> int:
        return self._tokens.taken(now) + sum(each.tokens for each in self._seats)

    def headers(self, now: float) -> Iterator[tuple[bytes, bytes]]:
        """OpenAI's, for the limits that there are. A reset is when all of it is there again."""
        for what, limit, window, taken in (
            (b"requests", self.terms.rpm, self._requests, self._requests.taken),
            (b"tokens", self.terms.tpm, self._tokens, self._spent),
        ):
            if limit is not None:
                left = max(0, limit - taken(now))
                yield b"x-ratelimit-limit-" + what, b"%d" % limit
                yield b"x-ratelimit-remaining-" + what, b"%d" % left
                yield b"x-ratelimit-reset-" + what, b"%ds" % math.ceil(window.below_s(now, 1))


def _whole(seconds: float) -> int:
    """At least one: zero would say at once."""
    return max(1, math.ceil(seconds))
