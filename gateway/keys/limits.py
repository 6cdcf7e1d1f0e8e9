"""What one key may do in a minute, and at once. No I/O; the caller brings the time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from gateway.keys.api_key import Terms
from gateway.keys.window import Window

# A running request may end at any time.
_AGAIN_S: Final = 1


class Denial(Struct, frozen=True):
    """Why a request has to wait, in a sentence, and for how long."""

    reason: str
    retry_after_s: int


class LimitsState(Struct, frozen=True):
    """What was taken within the last minute, as `Window` has it."""

    requests: tuple[tuple[int, int], ...]
    tokens: tuple[tuple[int, int], ...]


class Limits:
    """Requests are counted when they come in, tokens when their request is over: the one that goes
    beyond the limit is finished, and the next ones wait.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.running = 0
        self._requests = Window()
        self._tokens = Window()

    @property
    def state(self) -> LimitsState:
        """For another gateway."""
        return LimitsState(self._requests.steps, self._tokens.steps)

    def restore(self, state: LimitsState) -> None:
        """Go on from what an earlier gateway has counted."""
        self._requests.restore(state.requests)
        self._tokens.restore(state.tokens)

    def admit(self, now: float) -> Denial | None:
        """Take a request in, which has to be ended by `release`; or say why not."""
        terms = self.terms
        if terms.concurrent is not None and self.running >= terms.concurrent:
            return Denial(f"{terms.concurrent} at once, as many as it may have", _AGAIN_S)
        if terms.rpm is not None and self._requests.taken(now) >= terms.rpm:
            wait_s = self._requests.below_s(now, terms.rpm)
            return Denial(f"{terms.rpm} requests a minute", _whole(wait_s))
        if terms.tpm is not None and self._tokens.taken(now) >= terms.tpm:
            wait_s = self._tokens.below_s(now, terms.tpm)
            return Denial(f"{terms.tpm} tokens a minute", _whole(wait_s))
        self.running += 1
        self._requests.add(now, 1)
        return None

    def release(self, now: float, tokens: int) -> None:
        """A request that was admitted is over, and took so many tokens."""
        self.running -= 1
        self.spend(now, tokens)

    def spend(self, now: float, tokens: int) -> None:
        """Tokens of what is no request any more, as of a background answer."""
        self._tokens.add(now, tokens)

    def headers(self, now: float) -> Iterator[tuple[bytes, bytes]]:
        """OpenAI's, for the limits that there are. A reset is when all of it is there again."""
        for what, limit, window in (
            (b"requests", self.terms.rpm, self._requests),
            (b"tokens", self.terms.tpm, self._tokens),
        ):
            if limit is not None:
                left = max(0, limit - window.taken(now))
                yield b"x-ratelimit-limit-" + what, b"%d" % limit
                yield b"x-ratelimit-remaining-" + what, b"%d" % left
                yield b"x-ratelimit-reset-" + what, b"%ds" % math.ceil(window.below_s(now, 1))


def _whole(seconds: float) -> int:
    """At least one: zero would say at once."""
    return max(1, math.ceil(seconds))
