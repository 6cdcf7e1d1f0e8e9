"""Whether an answer repeats the same tokens at its end, again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# Models that loop repeat anything from a token to a paragraph.
LONGEST: Final = 256
# So many repetitions, and so many tokens: tables, lists of zeros and laughter have fewer.
LEAST_REPETITIONS: Final = 8
LEAST_TOKENS: Final = 1024
# An answer that is to end is looked at once in so many tokens.
_EVERY: Final = 64


def repeats(token_ids: Sequence[int]) -> bool:
    """Whether the last `LEAST_TOKENS` tokens or more are repetitions of their last 1 to `LONGEST`
    tokens, and at least `LEAST_REPETITIONS` of them.
    """
    if len(token_ids) < LEAST_TOKENS:
        return False
    last = list(token_ids[-LEAST_REPETITIONS * LONGEST :])[::-1]
    return any(_has_period(last, period) for period in range(1, LONGEST + 1))


def _has_period(last: list[int], period: int) -> bool:
    length = max(LEAST_TOKENS, LEAST_REPETITIONS * period)
    if length > len(last) or last[period] != last[0]:
        return False
    return last[period:length] == last[: length - period]


class RepetitionWatch:
    """The tokens of one answer. Another watch that gets the same tokens says the same."""

    def __init__(self, *, ends: bool) -> None:
        """With `ends` the answer is to end once it repeats itself."""
        self._ends = ends
        self._token_ids: list[int] = []

    def add(self, token_id: int) -> bool:
        """Take in a token. Returns whether the answer is to end with it."""
        self._token_ids.append(token_id)
        return self._ends and len(self._token_ids) % _EVERY == 0 and self.repeats

    @property
    def repeats(self) -> bool:
        """Whether the answer repeats itself at its end."""
        return repeats(self._token_ids)
