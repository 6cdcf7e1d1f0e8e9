"""Whether an upstream may be asked, from how it has answered before. No I/O.

Looks, which fetch the list of models, show whether the upstream can be reached. A breaker shows
whether the upstream answers requests: an upstream may list its models quickly and fail on all of
them.
"""

from __future__ import annotations

from typing import Final

# The pause between two looks, and the pauses after looks that failed: each is twice the one before.
_EVERY_S: Final = 2.0
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 60.0
# So many failed requests in a row open the breaker. After `_OPEN_S` one request is admitted.
_FAILURES: Final = 3
_OPEN_S: Final = 30.0


class UpstreamHealth:
    """The health of one upstream. Times are in seconds of a clock that doesn't go back."""

    def __init__(self) -> None:
        self.asked = False
        self._trouble: str | None = "it was not asked yet"
        self._misses = 0
        self._look_at = 0.0
        self._failures = 0
        self._failure = ""
        self._open_until: float | None = None

    @property
    def reachable(self) -> bool:
        """Whether the last look has succeeded."""
        return self._trouble is None

    def trouble(self, now: float) -> str | None:
        """Why requests are refused now; None: they aren't."""
        if self._trouble is not None:
            return self._trouble
        if self._open_until is not None and now < self._open_until:
            return f"{_FAILURES} requests in a row have failed, the last one as it {self._failure}"
        return None

    def wait_s(self, now: float) -> float:
        """Seconds until a refused request is worth another try; 0.0: none is refused."""
        if self._trouble is not None:
            return max(_FIRST_S, self._look_at - now)
        return 0.0 if self._open_until is None else max(0.0, self._open_until - now)

    def pause_s(self) -> float:
        """Seconds until the next look."""
        if self.reachable:
            return _EVERY_S
        return min(_LONGEST_S, _FIRST_S * 2.0 ** min(self._misses - 1, 10))

    def reached(self) -> None:
        """A look has succeeded."""
        self.asked, self._trouble, self._misses = True, None, 0

    def missed(self, now: float, reason: str) -> None:
        """A look has failed."""
        self.asked, self._trouble = True, reason
        self._misses += 1
        self._look_at = now + self.pause_s()

    def sent(self, now: float) -> None:
        """A request is sent to the upstream. The first request after `_OPEN_S` is alone: its end
        shows whether others may follow.
        """
        if self._open_until is not None and now >= self._open_until:
            self._open_until = now + _OPEN_S

    def served(self) -> None:
        """The upstream has begun to answer a request."""
        self._failures, self._open_until = 0, None

    def failed(self, now: float, reason: str) -> None:
        """A request got no answer, or not all of it. `reason` completes "it ..."."""
        self._failures += 1
        self._failure = reason
        if self._failures >= _FAILURES:
            self._open_until = now + _OPEN_S
