"""Decides how many guesses a step checks, and whether they come from the text or from a drafter.
The choice that promises the most tokens a second wins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from worker.guesses.costs import WIDTHS, StepCosts, hoped_ratio
from worker.guesses.lookup import Lookup
from worker.mlx_lm.guessing import DRAFTED, DraftGuesses

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
# A drafter's guesses are expected to be as good as those of a match of this length.
_DRAFTED_MATCH: Final = 16
# The guesses of a rehearsal, whose prompts are zeros. Right ones would end it too soon.
_WRONG: Final = 1
# Wider steps must promise this much more, since figures vary.
_MARGIN: Final = 1.03


# Once in so many steps guesses are tried whose cost is not known, or was too high: it may have been
# measured while the machine was busy. A try has few tokens in all rows, so that no row waits long.
_TRIED_SOON: Final = 8
_TRIED_AGAIN: Final = 200
_TRIED_TOKENS: Final = 64
# Each try of a drafter that stays without success doubles the steps until the next, so many times.
_MOST_DOUBLED: Final = 4


class Shares:
    """The share of guesses that are right in all rows, by the length of the match that gave them.
    Guesses are counted whether a step checked them or not.
    """

    def __init__(self) -> None:
        self._right = [_FIRST_WEIGHT * first_share for first_share in _FIRST_SHARES]
        self._counted = [_FIRST_WEIGHT] * len(_FIRST_SHARES)

    def count(self, matched: int, *, right: bool) -> None:
        length_bits = matched.bit_length()
        self._right[length_bits] = self._right[length_bits] * _FADING + right
        self._counted[length_bits] = self._counted[length_bits] * _FADING + 1.0

    def share(self, matched: int) -> float:
        length_bits = matched.bit_length()
        return self._right[length_bits] / self._counted[length_bits]


class RowShares:
    """The share of guesses that are right in one row: that of all rows, corrected by the last
    guesses of this row.
    """

    def __init__(self, of_all: Shares) -> None:
        self._of_all = of_all
        self._right = 0.0
        self._counted = 0.0

    def count(self, matched: int, *, right: bool) -> None:
        self._of_all.count(matched, right=right)
        self._right = self._right * _ROW_FADING + right
        self._counted = self._counted * _ROW_FADING + 1.0

    def share(self, matched: int) -> float:
        expected = _ROW_WEIGHT * self._of_all.share(matched)
        return (self._right + expected) / (self._counted + _ROW_WEIGHT)


class _Chance(NamedTuple):
    """A row's guesses: their number, the share of right ones among them, and the probability that
    they are wanted at all.
    """

    guesses: int
    share: float
    wanted: float

    def tokens(self, width: int) -> float:
        """The tokens to expect of a step with `width` tokens a row."""
        share, guesses = self.share, min(self.guesses, width - 1)
        # The sum of the geometric series share + share^2 + ...
        right = share * (1.0 - share**guesses) / (1.0 - share) if share < 1.0 else float(guesses)
        return 1.0 + self.wanted * right

    def tokens_redone(self, width: int) -> float:
        """The same if a wrong guess takes a step more, which makes one token."""
        wrong = self.wanted * (1.0 - self.share ** min(self.guesses, width - 1))
        return (self.tokens(width) + wrong) / (1.0 + wrong)


_NONE: Final = _Chance(0, 0.0, 0.0)


class _Plan(NamedTuple):
    """A step: how many tokens a row it may have, and how many of them a drafter guesses."""

    width: int = 1
    drafted: int = 0

    def drafts(self, lookup: _Chance, drafted: _Chance) -> bool:
        """Whether the drafter's guesses for a row promise more than those that were found."""
        return drafted.tokens(1 + self.drafted) > lookup.tokens(self.width)


class Drafts(NamedTuple):
    """A drafter's guesses: at most `tokens` at a time, and the share of right ones."""

    tokens: int
    shares: Shares


class _GuessedRow:
    """What is known of a row's guesses: those that are found, and those of the drafter."""

    def __init__(self, lookup: Lookup, shares: RowShares, drafted_shares: RowShares) -> None:
        self.lookup = lookup
        self.shares = shares
        self.drafted_shares = drafted_shares
        # The drafter's guesses for the next tokens; None for a token that it didn't guess.
        self._expected: deque[int | None] = deque()

    def expect(self, first: int, guesses: Sequence[int]) -> None:
        """Note the drafter's guesses for the tokens after `first`, which comes next."""
        self._compare(first)
        self._expected = deque([None, *guesses])

    def record(self, token: int, *, rehearsed: bool) -> None:
        self._compare(token)
        if self.lookup.next is not None and not rehearsed:
            self.shares.count(self.lookup.matched, right=self.lookup.next == token)
        self.lookup.add(token)

    def _compare(self, token: int) -> None:
        expected = self._expected.popleft() if self._expected else None
        if expected is None:
            return
        self.drafted_shares.count(_DRAFTED_MATCH, right=expected == token)
        if expected != token:
            # Guesses after a wrong one say nothing.
            self._expected.clear()


class BatchGuesser:
    """The guesses of the rows of one batch, which are known by their numbers."""

    def __init__(
        self,
        costs: StepCosts,
        shares: Shares,
        drafts: Drafts,
        forced: Callable[[int], list[int]],
        most_width: Callable[[int], int],
        *,
        redoes: bool,
    ) -> None:
        """`costs`, `shares` and `drafts` are those of the model. `forced` tells which tokens must
        come next in a row, its next token first. `most_width` tells how many tokens a row fit the
        memory of a step with so many rows. With `redoes` a row takes a step without guesses after a
        wrong one.
        """
        self._costs = costs
        self._shares = shares
        self._drafts = drafts
        self._forced = forced
        self._most_width = most_width
        self._expected = _Chance.tokens_redone if redoes else _Chance.tokens
        self._rows: dict[int, _GuessedRow] = {}
        # Steps for which guesses cost too much, the tries so far, and the next step if that is a
        # try. The same for the drafter.
        self._parked = 0
        self._tries = 0
        self._undrafted = 0
        self._draft_tries = 0
        self._tried: _Plan | None = None

    def add(self, row: int, token_ids: Sequence[int], prediction: Sequence[int] = ()) -> None:
        """Add a row, whose prompt has these tokens."""
        self._rows[row] = _GuessedRow(
            Lookup(token_ids, prediction),
            RowShares(self._shares),
            RowShares(self._drafts.shares),
        )

    def remove(self, row: int) -> None:
        del self._rows[row]

    def record(self, row: int, token: int) -> None:
        self._rows[row].record(token, rehearsed=self._costs.rehearsed is not None)

    def is_likely(self, rows: Sequence[int]) -> bool:
        """Whether guesses may pay in the next step. Its first token counts as a guess, too."""
        if self._costs.rehearsed is not None:
            return self._costs.rehearsed > 1
        chances = []
        for index in rows:
            row, forced = self._rows[index], self._forced(index)
            if len(forced) > 1:
                chances.append(_Chance(len(forced) - 1, _FORCED_SHARE, 1.0))
            elif row.lookup.next is None:
                chances.append(_NONE)
            else:
                share = row.shares.share(row.lookup.matched)
                chances.append(_Chance(WIDTHS[-1], share, share))
        drafted = self._draft_chances(rows, [self._drafts.tokens] * len(rows))
        if self._best(chances, drafted).width > 1:
            return True
        self._tried = self._lookup_try(chances) or self._draft_try(len(rows))
        return self._tried is not None

    def guess(
        self, rows: Sequence[int], first: Sequence[int], most: Sequence[int], draft: DraftGuesses
    ) -> list[list[int]]:
        if self._costs.rehearsed is not None:
            return self._rehearse(most, draft)
        guesses: list[list[int]] = []
        chances: list[_Chance] = []
        for index, token, count in zip(rows, first, most, strict=True):
            row, forced = self._rows[index], self._forced(index)
            if len(forced) > 1 and forced[0] == token:
                guesses.append(forced[1 : count + 1])
                chances.append(_Chance(len(guesses[-1]), _FORCED_SHARE, 1.0))
                continue
            matching, matched = row.lookup.after(token, min(count, WIDTHS[-1] - 1))
            guesses.append(matching)
            chances.append(_Chance(len(matching), row.shares.share(matched), 1.0))
        drafted = self._draft_chances(rows, most)
        plan = self._tried or self._best(chances, drafted)
        if plan.drafted and self._tried is None:
            self._undrafted = self._draft_tries = 0
        self._tried = None
        guesses = [tokens[: plan.width - 1] for tokens in guesses]
        counts = [
            min(plan.drafted, draft_chance.guesses) if plan.drafts(chance, draft_chance) else 0
            for chance, draft_chance in zip(chances, drafted, strict=True)
        ]
        if any(counts):
            for index, draft_tokens in enumerate(draft(counts)):
                if draft_tokens:
                    guesses[index] = draft_tokens
                    self._rows[rows[index]].expect(first[index], draft_tokens)
        return guesses

    def _rehearse(self, most: Sequence[int], draft: DraftGuesses) -> list[list[int]]:
        """Guesses of the rehearsed width. The drafter guesses, too, until its cost is known."""
        width = self._costs.rehearsed or 1
        counts = [min(self._drafts.tokens, width - 1, count) for count in most]
        if any(counts) and not self._costs.is_measured(len(most), DRAFTED):
            draft(counts)
        return [[_WRONG] * min(width - 1, count) for count in most]

    def _draft_chances(self, rows: Sequence[int], most: Iterable[int]) -> list[_Chance]:
        return [
            _Chance(
                min(self._drafts.tokens, count),
                self._rows[row].drafted_shares.share(_DRAFTED_MATCH),
                1.0,
            )
            for row, count in zip(rows, most, strict=True)
        ]

    def _draft_try(self, rows: int) -> _Plan | None:
        """The next step, if it tries the drafter although it seems not to pay; else None."""
        most = min(_TRIED_TOKENS // rows, self._most_width(rows), self._drafts.tokens + 1)
        width = max(
            (possible_width for possible_width in WIDTHS if possible_width <= most), default=1
        )
        if width == 1:
            return None
        self._undrafted += 1
        known = all(self._costs.is_known(rows, step_width) for step_width in (DRAFTED, width))
        doubled = min(self._draft_tries, _MOST_DOUBLED)
        if self._undrafted < (_TRIED_AGAIN << doubled if known else _TRIED_SOON):
            return None
        self._undrafted = 0
        self._draft_tries += known
        return _Plan(width, width - 1)

    def _lookup_try(self, chances: list[_Chance]) -> _Plan | None:
        """The next step, if it tries guesses that cost too much, or whose cost is not known; else
        None.
        """
        rows = len(chances)
        # Two tries of each width, since the first may compile kernels.
        width = WIDTHS[-1 - self._tries // 2 % (len(WIDTHS) - 1)]
        while width > 1 and rows * width > min(_TRIED_TOKENS, rows * self._most_width(rows)):
            width //= 2
        hoped = sum(chance.tokens(width) for chance in chances) / hoped_ratio(width)
        if hoped <= rows * _MARGIN:
            return None
        self._parked += 1
        every = _TRIED_AGAIN if self._costs.is_known(rows, width) else _TRIED_SOON
        if self._parked % every:
            return None
        self._tries += 1
        return _Plan(width)

    def _best(self, chances: list[_Chance], drafted: list[_Chance]) -> _Plan:
        """The step that makes the most tokens a second. `chances` are those of guesses that were
        found.
        """
        if not any(chance.guesses for chance in (*chances, *drafted)):
            return _Plan()
        rows = len(chances)
        best, most = _Plan(), rows * _MARGIN
        for width in WIDTHS[1:]:
            if width > self._most_width(rows):
                break
            drafting = _Plan(width, min(width - 1, self._drafts.tokens))
            for plan in (_Plan(width), drafting) if drafting.drafted else (drafting,):
                speed = sum(
                    max(
                        self._expected(chance, width),
                        self._expected(draft_chance, 1 + plan.drafted),
                    )
                    for chance, draft_chance in zip(chances, drafted, strict=True)
                )
                speed /= self._costs.ratio(rows, width) + plan.drafted * self._costs.ratio(
                    rows, DRAFTED
                )
                if speed > most:
                    best, most = plan, speed
        return best
