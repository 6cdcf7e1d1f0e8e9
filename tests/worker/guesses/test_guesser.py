"""A step takes as many guesses as make the most tokens a second, and never more than it may."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.guesses.costs import WIDTHS, StepCosts
from worker.guesses.guesser import BatchGuesser, RowShares, Shares

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
    return _costs(rows, {each: 1 + share * (each - 1) for each in WIDTHS[1:]})


def _guesser(
    costs: StepCosts,
    forced: Callable[[int], list[int]] = lambda _: NOTHING,
    most_width: int = 16,
) -> BatchGuesser:
    return BatchGuesser(costs, Shares(), forced, lambda _: most_width)


def _widths(guesser: BatchGuesser, row: int, text: list[int], most: int = 100) -> list[int]:
    """The tokens that a step takes, before each token of the text comes."""
    found = []
    for token_id in text:
        guesser.is_likely([row])
        found.append(1 + len(guesser.guess([row], [token_id], [most])[0]))
        guesser.take(row, token_id)
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
    text = [each for at in range(100) for each in (1, 2, 3, 100 + at)]
    widths = _widths(guesser, 1, text)
    # After 1, 2, 3 the guess is wrong. After 2, 3, 100 and so on there is none.
    assert set(widths[200:]) == {1}
    assert not guesser.is_likely([1])


def test_guesses_come_back_when_they_turn_right() -> None:
    guesser = _guesser(_all_cost(1, 0.1))
    guesser.add(1, [])
    wrong = [each for at in range(60) for each in (1, 2, 3, 100 + at)]
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
        assert not any(guesser.guess(rows, first, [100] * 16))
        guesser.take(0, token_id)


def test_what_a_constraint_forces_is_guessed() -> None:
    forced = [5, 6, 7, 8, 9, 10]
    guesser = _guesser(_all_cost(1, 0.1), lambda _: forced)
    guesser.add(1, [1, 2, 3])
    assert guesser.is_likely([1])
    assert guesser.guess([1], [5], [100]) == [[6, 7, 8, 9, 10]]
    assert guesser.guess([1], [5], [2]) == [[6, 7]]
    # Another token came than the one that was forced.
    assert guesser.guess([1], [4], [100]) == [[]]


def test_a_rehearsal_has_the_width_that_it_measures() -> None:
    costs = _all_cost(2, 1.0)
    guesser = _guesser(costs)
    for row in (1, 2):
        guesser.add(row, [0] * 32)
    for width in WIDTHS:
        costs.rehearsed = width
        assert guesser.is_likely([1, 2]) == (width > 1)
        guesses = guesser.guess([1, 2], [0, 0], [100, 3])
        assert [len(each) for each in guesses] == [width - 1, min(width - 1, 3)]
        # Rehearsed answers repeat zeros.
        assert not any(0 in each for each in guesses)


def test_a_rehearsal_says_nothing_of_guesses() -> None:
    shares = Shares()
    costs = StepCosts()
    guesser = BatchGuesser(costs, shares, lambda _: NOTHING, lambda _: 16)
    guesser.add(1, [0] * 32)
    before = shares.share(32)
    costs.rehearsed = 1
    for _ in range(20):
        guesser.take(1, 0)
    assert shares.share(32) == before


TOKENS = st.lists(st.integers(0, 4), max_size=30)


@given(
    st.lists(st.tuples(TOKENS, TOKENS, TOKENS, st.integers(0, 20)), min_size=1, max_size=6),
    st.sampled_from(WIDTHS),
    st.sampled_from([None, *WIDTHS]),
    st.floats(0.0, 1.0),
    st.randoms(use_true_random=False),
)
def test_there_are_never_more_guesses_than_may_be(
    made: list[tuple[list[int], list[int], list[int], int]],
    most_width: int,
    rehearsed: int | None,
    share: float,
    chance: random.Random,
) -> None:
    costs = _all_cost(len(made), share)
    costs.rehearsed = rehearsed
    forced = {row: each[2] for row, each in enumerate(made)}
    guesser = _guesser(costs, forced.__getitem__, most_width)
    for row, (prompt, prediction, _, _) in enumerate(made):
        guesser.add(row, prompt, prediction)
    rows, most = list(forced), [each[3] for each in made]
    for _ in range(10):
        first = [chance.randrange(5) for _ in rows]
        guesser.is_likely(rows)
        guesses = guesser.guess(rows, first, most)
        widest = 1 + max(map(len, guesses))
        assert widest <= (most_width if rehearsed is None else rehearsed)
        assert all(len(each) <= count for each, count in zip(guesses, most, strict=True))
        for row, token_id in zip(rows, first, strict=True):
            guesser.take(row, token_id)


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
