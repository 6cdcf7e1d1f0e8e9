"""The decision how many guesses a step takes: as many as make the most tokens a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from worker.guesses.costs import WIDTHS, StepCosts, hoped_ratio
from worker.guesses.lookup import Lookup

# The shares of right guesses to expect at first, by the bits in the length of the match.
_FIRST_SHARES: Final = (0.0, 0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.8)
# The first shares count like so many guesses, and older guesses less by a factor with each guess.
_FIRST_WEIGHT: Final = 8.0
_FADING: Final = 0.995
# So for a single row, whose text changes its kind.
_ROW_WEIGHT: Final = 3.0
_ROW_FADING: Final = 0.9
# What a constraint forces is right, but for ways in which a text becomes tokens.
_FORCED_SHARE: Final = 0.98
# The guesses of a rehearsal, whose prompts are zeros. Right ones would end it too soon.
_WRONG: Final = 1
# Wider steps must promise this much more, since figures vary.
_MARGIN: Final = 1.03


# Once in so many steps guesses are tried whose cost is not known, or was too high: it may have been
# measured while the machine was busy. A try has few tokens in all rows, so that no row waits long.
_TRIED_SOON: Final = 8
_TRIED_AGAIN: Final = 200
_TRIED_TOKENS: Final = 64


class Shares:
    """The share of guesses that are right in all rows, by the length of the match that gave them.
    Guesses are counted whether a step checked them or not.
    """

    def __init__(self) -> None:
        self._right = [_FIRST_WEIGHT * each for each in _FIRST_SHARES]
        self._made = [_FIRST_WEIGHT] * len(_FIRST_SHARES)

    def count(self, matched: int, *, right: bool) -> None:
        at = matched.bit_length()
        self._right[at] = self._right[at] * _FADING + right
        self._made[at] = self._made[at] * _FADING + 1.0

    def share(self, matched: int) -> float:
        at = matched.bit_length()
        return self._right[at] / self._made[at]


class RowShares:
    """The share of guesses that are right in one row: that of all rows, corrected by the last
    guesses of this row.
    """

    def __init__(self, of_all: Shares) -> None:
        self._of_all = of_all
        self._right = 0.0
        self._made = 0.0

    def count(self, matched: int, *, right: bool) -> None:
        self._of_all.count(matched, right=right)
        self._right = self._right * _ROW_FADING + right
        self._made = self._made * _ROW_FADING + 1.0

    def share(self, matched: int) -> float:
        expected = _ROW_WEIGHT * self._of_all.share(matched)
        return (self._right + expected) / (self._made + _ROW_WEIGHT)


class _Chance(NamedTuple):
    """A row's guesses: their number, the share of right ones among them, and the probability that
    they are wanted at all.
    """

    guesses: int
    share: float
    wanted: float

    def tokens(self, width: int) -> float:
        """The tokens to expect of a step with `width` tokens a row."""
        count, share = min(self.guesses, width - 1), self.share
        # The sum of the first `count` powers of the share.
        right = count if share == 1.0 else share * (1.0 - share**count) / (1.0 - share)
        return 1.0 + self.wanted * right


_NONE: Final = _Chance(0, 0.0, 0.0)


class _Row:
    def __init__(self, lookup: Lookup, shares: RowShares) -> None:
        self.lookup = lookup
        self.shares = shares


class BatchGuesser:
    """The guesses of the rows of one batch, which are known by their numbers."""

    def __init__(
        self,
        costs: StepCosts,
        shares: Shares,
        forced: Callable[[int], list[int]],
        most_width: Callable[[int], int],
    ) -> None:
        """`costs` and `shares` are those of the model. `forced` tells which tokens must come next
        in a row, its next token first. `most_width` tells how many tokens a row fit the memory of a
        step with so many rows.
        """
        self._costs = costs
        self._shares = shares
        self._forced = forced
        self._most_width = most_width
        self._rows: dict[int, _Row] = {}
        # Steps for which guesses cost too much, the tries so far, and the width of the next step if
        # that is a try.
        self._parked = 0
        self._tries = 0
        self._tried_width: int | None = None

    def add(self, row: int, token_ids: Sequence[int], prediction: Sequence[int] = ()) -> None:
        """Add a row, whose prompt has these tokens."""
        self._rows[row] = _Row(Lookup(token_ids, prediction), RowShares(self._shares))

    def remove(self, row: int) -> None:
        del self._rows[row]

    def take(self, row: int, token: int) -> None:
        own = self._rows[row]
        guess = own.lookup.next
        if guess is not None and self._costs.rehearsed is None:
            own.shares.count(own.lookup.matched, right=guess == token)
        own.lookup.take(token)

    def is_likely(self, rows: Sequence[int]) -> bool:
        """Whether guesses may pay in the next step. Its first token counts as a guess, too."""
        if self._costs.rehearsed is not None:
            return self._costs.rehearsed > 1
        chances = []
        for each in rows:
            own, forced = self._rows[each], self._forced(each)
            if len(forced) > 1:
                chances.append(_Chance(len(forced) - 1, _FORCED_SHARE, 1.0))
            elif own.lookup.next is None:
                chances.append(_NONE)
            else:
                share = own.shares.share(own.lookup.matched)
                chances.append(_Chance(WIDTHS[-1], share, share))
        return self._best_width(chances) > 1 or self._tries_now(chances)

    def guess(
        self, rows: Sequence[int], first: Sequence[int], most: Sequence[int]
    ) -> list[list[int]]:
        if self._costs.rehearsed is not None:
            return [[_WRONG] * min(self._costs.rehearsed - 1, each) for each in most]
        guesses: list[list[int]] = []
        chances: list[_Chance] = []
        for each, token, count in zip(rows, first, most, strict=True):
            own, forced = self._rows[each], self._forced(each)
            if len(forced) > 1 and forced[0] == token:
                guesses.append(forced[1 : count + 1])
                chances.append(_Chance(len(guesses[-1]), _FORCED_SHARE, 1.0))
                continue
            found, matched = own.lookup.after(token, min(count, WIDTHS[-1] - 1))
            guesses.append(found)
            chances.append(_Chance(len(found), own.shares.share(matched), 1.0))
        width = self._tried_width or self._best_width(chances)
        self._tried_width = None
        return [each[: width - 1] for each in guesses]

    def _tries_now(self, chances: list[_Chance]) -> bool:
        """Whether the next step tries guesses that cost too much, or whose cost is not known."""
        rows = len(chances)
        # Two tries of each width, since the first may compile kernels.
        width = WIDTHS[-1 - self._tries // 2 % (len(WIDTHS) - 1)]
        while width > 1 and rows * width > min(_TRIED_TOKENS, rows * self._most_width(rows)):
            width //= 2
        hoped = sum(each.tokens(width) for each in chances) / hoped_ratio(width)
        if hoped <= rows * _MARGIN:
            return False
        self._parked += 1
        every = _TRIED_AGAIN if self._costs.is_known(rows, width) else _TRIED_SOON
        if self._parked % every:
            return False
        self._tries += 1
        self._tried_width = width
        return True

    def _best_width(self, chances: list[_Chance]) -> int:
        """The number of tokens a row that makes the most tokens a second."""
        if not any(each.guesses for each in chances):
            return 1
        rows = len(chances)
        best, most = 1, rows * _MARGIN
        for width in WIDTHS[1:]:
            if width > self._most_width(rows):
                break
            made = sum(each.tokens(width) for each in chances)
            made /= self._costs.ratio(rows, width)
            if made > most:
                best, most = width, made
        return best
