"""A step takes as many guesses as make the most tokens a second, and never more than it may."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.guesses.costs import WIDTHS, StepCosts
from worker.guesses.guesser import (
    BatchGuesser,
    Drafts,
    RowShares,
    Shares,
    _Chance,
    _GuessedRow,
    _Plan,
)
from worker.guesses.lookup import Lookup
from worker.mlx_lm.guessing import DRAFTED

NOTHING: list[int] = []


def _costs(rows: int, ratios: dict[int, float]) -> StepCosts:
    """Costs by which a step of `width` tokens a row takes so many times a step of one."""
    costs = StepCosts()
    for width, ratio in {1: 1.0, **ratios}.items():
        for _ in range(2):
            costs.observe(rows, width, ratio)
    return costs


def _all_cost(rows: int, share: float) -> StepCosts:
    """Costs by which each token a row more takes this share of a step of one."""
    return _costs(rows, {width: 1 + share * (width - 1) for width in WIDTHS[1:]})


def _guesser(
    costs: StepCosts,
    forced: Callable[[int], list[int]] = lambda _: NOTHING,
    most_width: int = 16,
    drafts: int = 0,
    *,
    redoes: bool = False,
) -> BatchGuesser:
    drafting = Drafts(drafts, Shares())
    return BatchGuesser(costs, Shares(), drafting, forced, lambda _: most_width, redoes=redoes)


def _nothing(counts: list[int]) -> list[list[int]]:
    """A drafter that isn't there."""
    raise AssertionError(counts)


def _widths(guesser: BatchGuesser, row: int, text: list[int], most: int = 100) -> list[int]:
    """The tokens that a step takes, before each token of the text comes."""
    found = []
    for token_id in text:
        guesser.is_likely([row])
        found.append(1 + len(guesser.guess([row], [token_id], [most], _nothing)[0]))
        guesser.record(row, token_id)
    return found


REPEATED = list(range(40, 90))


def test_steps_are_wide_where_wide_steps_cost_little() -> None:
    guesser = _guesser(_all_cost(1, 0.01))
    guesser.add(1, [*REPEATED, 7, 8])
    widths = _widths(guesser, 1, REPEATED[:30])
    assert widths[0] == 1
    assert max(widths) == 16


def test_no_step_is_wide_where_each_token_costs_as_much_as_a_step() -> None:
    guesser = _guesser(_all_cost(1, 1.0))
    guesser.add(1, [*REPEATED, 7, 8])
    assert set(_widths(guesser, 1, REPEATED)) == {1}


def test_the_width_is_the_one_that_makes_the_most_tokens_a_second() -> None:
    """Four tokens cost as much as two here, and eight cost much."""
    guesser = _guesser(_costs(1, {2: 1.1, 4: 1.1, 8: 6.0, 16: 12.0}))
    guesser.add(1, [*REPEATED, 7, 8])
    assert _widths(guesser, 1, REPEATED)[10:40] == [4] * 30


def test_a_width_that_was_never_tried_is_tried_where_guesses_are_good() -> None:
    guesser = _guesser(StepCosts())
    guesser.add(1, [*REPEATED, 7, 8])
    assert max(_widths(guesser, 1, REPEATED[:30])) == 16


def test_wrong_guesses_end() -> None:
    """Each stretch of three tokens goes on otherwise each time that it comes."""
    guesser = _guesser(_all_cost(1, 0.2))
    guesser.add(1, [])
    text = [number for index in range(100) for number in (1, 2, 3, 100 + index)]
    widths = _widths(guesser, 1, text)
    # After 1, 2, 3 the guess is wrong. After 2, 3, 100 and so on there is none.
    assert set(widths[200:]) == {1}
    assert not guesser.is_likely([1])


def test_guesses_come_back_when_they_turn_right() -> None:
    guesser = _guesser(_all_cost(1, 0.1))
    guesser.add(1, [])
    wrong = [number for index in range(60) for number in (1, 2, 3, 100 + index)]
    assert _widths(guesser, 1, wrong)[-8:] == [1] * 8
    right = list(range(200, 230))
    widths = _widths(guesser, 1, right * 4)
    assert set(widths[:30]) == {1}
    assert min(widths[95:110]) > 4


def test_a_row_with_good_guesses_beside_many_without_any() -> None:
    """A step is as wide for all its rows, so the others would pay for one row's guesses."""
    rows = list(range(16))
    guesser = _guesser(_all_cost(16, 0.5))
    guesser.add(0, [*REPEATED, 7, 8])
    for row in rows[1:]:
        guesser.add(row, [])
    for token_id in REPEATED:
        first = [token_id, *(1000 + token_id for _ in rows[1:])]
        assert not any(guesser.guess(rows, first, [100] * 16, _nothing))
        guesser.record(0, token_id)


def test_forced_tokens_are_guessed() -> None:
    forced = [5, 6, 7, 8, 9, 10]
    guesser = _guesser(_all_cost(1, 0.1), lambda _: forced)
    guesser.add(1, [1, 2, 3])
    assert guesser.is_likely([1])
    assert guesser.guess([1], [5], [100], _nothing) == [[6, 7, 8, 9, 10]]
    assert guesser.guess([1], [5], [2], _nothing) == [[6, 7]]
    # Another token came than the one that was forced.
    assert guesser.guess([1], [4], [100], _nothing) == [[]]


def test_a_single_token_that_is_forced_is_guessed() -> None:
    guesser = _guesser(_all_cost(1, 0.1), lambda _: [5, 6])
    guesser.add(1, [1, 2, 3])
    assert guesser.is_likely([1])
    assert guesser.guess([1], [5], [100], _nothing) == [[6]]
    # The next token is no guess.
    guesser = _guesser(_all_cost(1, 0.1), lambda _: [5])
    guesser.add(1, [1, 2, 3])
    assert not guesser.is_likely([1])


def test_each_width_of_unknown_cost_is_tried_twice_with_steps_between() -> None:
    guesser = _guesser(StepCosts())
    guesser.add(1, REPEATED * 4)
    widths = _widths(guesser, 1, REPEATED * 2)
    tries = [(step, width) for step, width in enumerate(widths, 1) if width > 1]
    expected = [16, 16, 8, 8, 4, 4, 2, 2, 16, 16, 8, 8]
    assert tries == [(8 * number, width) for number, width in enumerate(expected, 1)]


def test_a_drafter_of_unknown_cost_is_tried_once_in_eight_steps() -> None:
    guesser = _guesser(StepCosts(), drafts=3)
    guesser.add(1, [])
    tries = []
    for step in range(1, 41):
        if guesser.is_likely([1]):
            guesser.guess([1], [step], [100], lambda counts: [[0] * count for count in counts])
            tries.append(step)
        guesser.record(1, step)
    assert tries == [8, 16, 24, 32, 40]


@pytest.mark.parametrize(
    ("chance", "width", "tokens"),
    [
        (_Chance(3, 0.5, 1.0), 1, 1.0),
        (_Chance(3, 0.5, 1.0), 2, 1.5),
        (_Chance(3, 0.5, 1.0), 4, 1.875),
        (_Chance(3, 0.5, 1.0), 8, 1.875),
        (_Chance(3, 0.5, 0.5), 4, 1.4375),
        (_Chance(3, 1.0, 1.0), 4, 4.0),
        (_Chance(3, 1.0, 0.5), 4, 2.5),
        (_Chance(0, 0.5, 1.0), 4, 1.0),
        (_Chance(3, 0.0, 1.0), 4, 1.0),
    ],
)
def test_the_tokens_to_expect_are_a_geometric_series(
    chance: _Chance, width: int, tokens: float
) -> None:
    assert chance.tokens(width) == pytest.approx(tokens)


def test_a_wrong_guess_that_takes_a_step_makes_one_token_more() -> None:
    # In 7 of 8 steps a guess is wrong.
    assert _Chance(3, 0.5, 1.0).tokens_redone(4) == pytest.approx((1.875 + 0.875) / 1.875)
    assert _Chance(3, 0.5, 1.0).tokens_redone(2) == pytest.approx((1.5 + 0.5) / 1.5)
    assert _Chance(3, 0.5, 0.5).tokens_redone(2) == pytest.approx((1.25 + 0.25) / 1.25)
    assert _Chance(3, 1.0, 1.0).tokens_redone(4) == pytest.approx(4.0)


def test_a_row_takes_the_guesses_that_promise_more() -> None:
    found = _Chance(1, 0.9, 1.0)
    # The first guess of the drafter is worse, all three are better.
    drafted = _Chance(3, 0.8, 1.0)
    assert not _Plan(4, 1).drafts(found, drafted)
    assert _Plan(4, 3).drafts(found, drafted)
    assert not _Plan(4, 1).drafts(found, found)


def test_guesses_of_a_drafter_after_a_wrong_one_say_nothing() -> None:
    drafted, expected = Shares(), Shares()
    row = _GuessedRow(Lookup([]), RowShares(Shares()), RowShares(drafted))
    row.expect(1, [2, 3, 4])
    for token in (1, 2, 9, 4):
        row.record(token, rehearsed=False)
    for right in (True, False):
        expected.count(16, right=right)
    assert drafted.share(16) == expected.share(16)
    row.expect(5, [6])
    row.record(5, rehearsed=False)
    row.record(6, rehearsed=False)
    expected.count(16, right=True)
    assert drafted.share(16) == expected.share(16)


def test_a_rehearsal_has_the_width_that_it_measures() -> None:
    costs = _all_cost(2, 1.0)
    guesser = _guesser(costs)
    for row in (1, 2):
        guesser.add(row, [0] * 32)
    for width in WIDTHS:
        costs.rehearsed = width
        assert guesser.is_likely([1, 2]) == (width > 1)
        guesses = guesser.guess([1, 2], [0, 0], [100, 3], _nothing)
        assert [len(guess) for guess in guesses] == [width - 1, min(width - 1, 3)]
        # Rehearsed answers repeat zeros.
        assert not any(0 in values for values in guesses)


def test_a_rehearsal_says_nothing_of_guesses() -> None:
    shares = Shares()
    costs = StepCosts()
    guesser = BatchGuesser(
        costs, shares, Drafts(0, Shares()), lambda _: NOTHING, lambda _: 16, redoes=False
    )
    guesser.add(1, [0] * 32)
    before = shares.share(32)
    costs.rehearsed = 1
    for _ in range(20):
        guesser.record(1, 0)
    assert shares.share(32) == before


class Drafter:
    """Guesses the text of one row, right or always wrong, and counts its passes."""

    def __init__(self, text: list[int], *, right: bool) -> None:
        self.text = text
        self.right = right
        self.place = 0
        self.passes = 0

    def __call__(self, counts: list[int]) -> list[list[int]]:
        (count,) = counts
        self.passes += count
        following = self.text[self.place + 1 : self.place + 1 + count]
        return [following if self.right else [number + 1 for number in following]]


def _drafted(guesser: BatchGuesser, drafter: Drafter) -> int:
    """The steps in which the text of row 1 is made."""
    text, steps = drafter.text, 0
    while drafter.place < len(text):
        first = text[drafter.place]
        guesses: list[int] = []
        if guesser.is_likely([1]):
            left = len(text) - drafter.place - 1
            (guesses,) = guesser.guess([1], [first], [left], drafter)
        made = [first]
        for guess in guesses:
            if guess != text[drafter.place + len(made)]:
                break
            made.append(guess)
        for number in made:
            guesser.record(1, number)
        drafter.place += len(made)
        steps += 1
    return steps


def _drafting(
    width_share: float, pass_share: float, *, redoes: bool = False
) -> tuple[BatchGuesser, StepCosts]:
    costs = _costs(1, {width: 1 + width_share * (width - 1) for width in WIDTHS[1:]})
    for _ in range(2):
        costs.observe(1, DRAFTED, pass_share)
    guesser = _guesser(costs, drafts=3, redoes=redoes)
    guesser.add(1, [])
    return guesser, costs


# Nothing in it comes twice.
TEXT = list(range(10, 10_010))


def test_a_drafter_that_is_right_guesses_as_much_as_it_may() -> None:
    guesser, _ = _drafting(0.05, 0.05)
    assert _drafted(guesser, Drafter(TEXT[:4000], right=True)) < 1100


def test_a_drafter_that_is_never_right_soon_guesses_hardly_anything() -> None:
    guesser, _ = _drafting(0.0, 0.01)
    first, later = (Drafter(values, right=False) for values in (TEXT[:5000], TEXT[5000:]))
    assert _drafted(guesser, first) == 5000
    assert 0 < first.passes < 300
    _drafted(guesser, later)
    assert 0 < later.passes < 15


def test_a_drafter_that_costs_too_much_hardly_guesses() -> None:
    guesser, _ = _drafting(0.05, 1.2)
    drafter = Drafter(TEXT, right=True)
    assert _drafted(guesser, drafter) > 0.98 * len(TEXT)
    assert 0 < drafter.passes < 100


def test_a_drafter_of_unknown_cost_is_tried_soon_and_then_used() -> None:
    costs = StepCosts()
    guesser = _guesser(costs, drafts=3)
    guesser.add(1, [])
    drafter = Drafter(TEXT[:3000], right=True)
    draft = guesser.guess

    def timed(*arguments: Any) -> list[list[int]]:
        before = drafter.passes
        guesses = draft(*arguments)
        if drafter.passes > before:
            costs.observe(1, DRAFTED, 0.1)
        costs.observe(1, 1 + len(guesses[0]), 1.0)
        return guesses

    guesser.guess = timed  # type: ignore[method-assign]
    for _ in range(2):
        costs.observe(1, 1, 1.0)
    assert _drafted(guesser, drafter) < 0.4 * 3000


def test_a_drafter_that_turns_right_is_used_again() -> None:
    guesser, _ = _drafting(0.0, 0.01)
    _drafted(guesser, Drafter(TEXT[:5000], right=False))
    assert _drafted(guesser, Drafter(TEXT[5000:], right=True)) < 0.6 * 5000


class HalfRight(Drafter):
    """Guesses one token in two right."""

    def __call__(self, counts: list[int]) -> list[list[int]]:
        (guesses,) = super().__call__(counts)
        return [[guess + (self.place + index) // 3 % 2 for index, guess in enumerate(guesses)]]


def test_fewer_guesses_pay_where_a_wrong_one_costs_a_step() -> None:
    passes = []
    for redoes in (False, True):
        guesser, _ = _drafting(0.3, 0.05, redoes=redoes)
        drafter = HalfRight(TEXT, right=True)
        _drafted(guesser, drafter)
        passes.append(drafter.passes)
    assert passes[1] < passes[0] / 5


def test_repetitions_are_not_left_to_a_drafter() -> None:
    guesser, _ = _drafting(0.01, 0.3)
    drafter = Drafter(REPEATED * 20, right=True)
    _drafted(guesser, drafter)
    first, drafter.passes, drafter.place = drafter.passes, 0, 0
    _drafted(guesser, drafter)
    assert drafter.passes <= first


TOKENS = st.lists(st.integers(0, 4), max_size=30)


@given(
    st.lists(st.tuples(TOKENS, TOKENS, TOKENS, st.integers(0, 20)), min_size=1, max_size=6),
    st.sampled_from(WIDTHS),
    st.sampled_from([None, *WIDTHS]),
    st.floats(0.0, 1.0),
    st.sampled_from([0, 1, 3, 5, 32]),
    st.randoms(use_true_random=False),
)
def test_there_are_never_more_guesses_than_may_be(
    made: list[tuple[list[int], list[int], list[int], int]],
    most_width: int,
    rehearsed: int | None,
    share: float,
    drafts: int,
    chance: random.Random,
) -> None:
    costs = _all_cost(len(made), share)
    costs.rehearsed = rehearsed
    forced = {row: pair[2] for row, pair in enumerate(made)}
    guesser = _guesser(costs, forced.__getitem__, most_width, drafts)

    def draft(counts: list[int]) -> list[list[int]]:
        assert max(counts) <= drafts
        return [[chance.randrange(5) for _ in range(count)] for count in counts]

    for row, (prompt, prediction, _, _) in enumerate(made):
        guesser.add(row, prompt, prediction)
    rows, most = list(forced), [pair[3] for pair in made]
    for _ in range(10):
        first = [chance.randrange(5) for _ in rows]
        guesser.is_likely(rows)
        guesses = guesser.guess(rows, first, most, draft)
        widest = 1 + max(map(len, guesses))
        assert widest <= (most_width if rehearsed is None else rehearsed)
        assert all(len(guess) <= count for guess, count in zip(guesses, most, strict=True))
        for row, token_id in zip(rows, first, strict=True):
            guesser.record(row, token_id)


@given(st.lists(st.tuples(st.integers(0, 64), st.booleans()), max_size=200), st.integers(0, 64))
def test_a_share_stays_a_share(counted: list[tuple[int, bool]], matched: int) -> None:
    of_all = Shares()
    shares = RowShares(of_all)
    for length, right in counted:
        shares.count(length, right=right)
    assert 0.0 <= shares.share(matched) <= 1.0
    assert 0.0 <= of_all.share(matched) <= 1.0


def test_new_rows_begin_with_the_shares_of_all_rows() -> None:
    of_all = Shares()
    first = RowShares(of_all)
    for _ in range(300):
        first.count(4, right=False)
    assert RowShares(of_all).share(4) < 0.1
    assert RowShares(of_all).share(64) == pytest.approx(Shares().share(64))


def test_shares_follow_what_was_right() -> None:
    of_all = Shares()
    row = RowShares(of_all)
    assert (of_all.share(4), row.share(4)) == (0.5, 0.5)
    row.count(4, right=True)
    assert of_all.share(4) == pytest.approx((4 * 0.995 + 1) / (8 * 0.995 + 1))
    assert row.share(4) == pytest.approx((1 + 3 * of_all.share(4)) / (1 + 3))
    for _ in range(2000):
        row.count(4, right=True)
    assert of_all.share(4) > 0.99
    assert row.share(4) > 0.99
    # A row that turns wrong is told from the others soon.
    for _ in range(20):
        row.count(4, right=False)
    assert row.share(4) < 0.5 < of_all.share(4)
