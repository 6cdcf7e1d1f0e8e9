"""What is known of the costs of steps, and what is assumed of steps that never were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.guesses.costs import WIDTHS, StepCosts, hoped_ratio

REMEMBERED_STEPS = 5


def _observe(costs: StepCosts, rows: int, width: int, *seconds: float) -> None:
    """Steps of these seconds, after one that compiles kernels."""
    for number in (100.0, *seconds):
        costs.observe(rows, width, number)


def test_a_ratio_is_that_of_medians() -> None:
    costs = StepCosts()
    _observe(costs, 1, 1, 1.0, 9.0, 2.0)
    _observe(costs, 1, 4, 3.0, 50.0, 3.0)
    assert costs.ratio(1, 4) == pytest.approx(1.5)


def test_the_first_step_is_left_out() -> None:
    costs = StepCosts()
    costs.observe(1, 1, 100.0)
    costs.observe(1, 4, 100.0)
    unknown = StepCosts().ratio(1, 4)
    assert costs.ratio(1, 4) == unknown
    costs.observe(1, 1, 1.0)
    assert costs.ratio(1, 4) == unknown
    costs.observe(1, 4, 2.0)
    assert costs.ratio(1, 4) == pytest.approx(2.0)


def test_the_last_steps_count() -> None:
    costs = StepCosts()
    _observe(costs, 2, 1, *[1.0] * REMEMBERED_STEPS)
    _observe(costs, 2, 2, *[9.0] * 20, *[1.25] * REMEMBERED_STEPS)
    assert costs.ratio(2, 2) == pytest.approx(1.25)


def test_other_widths_are_not_noted() -> None:
    costs = StepCosts()
    _observe(costs, 1, 1, 1.0)
    _observe(costs, 1, 3, 30.0)
    assert costs.ratio(1, 3) == StepCosts().ratio(1, 3)


@pytest.mark.parametrize("rows", [5, 6, 7, 8])
def test_nearly_as_many_rows_share_a_figure(rows: int) -> None:
    costs = StepCosts()
    _observe(costs, 8, 1, 1.0)
    _observe(costs, rows, 8, 4.0)
    assert costs.seconds == {"8x1": 1.0, "8x8": 4.0}
    assert costs.ratio(7, 8) == pytest.approx(4.0)


def test_twice_as_many_rows_stand_in_before_half_as_many() -> None:
    costs = StepCosts()
    for rows, ratio in ((2, 2.0), (8, 8.0)):
        _observe(costs, rows, 1, 1.0)
        _observe(costs, rows, 4, ratio)
    assert costs.ratio(4, 4) == pytest.approx(8.0)
    assert costs.ratio(1, 4) == pytest.approx(2.0)
    assert costs.ratio(16, 4) == pytest.approx(8.0)


def test_few_rows_stand_in_for_many_and_never_many_for_few() -> None:
    costs = StepCosts()
    _observe(costs, 4, 1, 1.0)
    _observe(costs, 4, 16, 9.0)
    assert costs.ratio(32, 16) == pytest.approx(9.0)
    assert costs.ratio(1, 16) == StepCosts().ratio(1, 16)


@given(st.integers(1, 300))
def test_an_unknown_step_counts_as_so_many_steps(rows: int) -> None:
    costs = StepCosts()
    assert [costs.ratio(rows, width) for width in WIDTHS] == list(WIDTHS)
    assert costs.ratio(rows, 0) == 1.0, "a pass of the drafter"
    assert not costs.is_known(rows, 2)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 40),
            st.integers(1, 20),
            st.floats(1e-6, 1e3, allow_nan=False, allow_infinity=False),
        )
    ),
    st.integers(1, 40),
    st.sampled_from(WIDTHS),
)
def test_any_steps_give_a_ratio(steps: list[tuple[int, int, float]], rows: int, width: int) -> None:
    costs = StepCosts()
    for step in steps:
        costs.observe(*step)
    assert costs.ratio(rows, width) > 0
    assert costs.ratio(rows, 1) == 1.0


def test_another_worker_knows_what_was_measured() -> None:
    costs = StepCosts()
    for width, seconds in ((1, 0.01), (16, 0.03)):
        for _ in range(5):
            costs.observe(4, width, seconds)
    later = StepCosts()
    later.know(costs.seconds)
    assert later.seconds == costs.seconds == {"4x1": 0.01, "4x16": 0.03}
    assert later.is_measured(4, 16)
    assert later.ratio(4, 16) == costs.ratio(4, 16)


def test_every_further_token_is_hoped_to_cost_a_part_of_the_first() -> None:
    assert hoped_ratio(1) == 1.0
    more = hoped_ratio(2) - 1.0
    assert 0.0 < more < 1.0
    assert hoped_ratio(16) == pytest.approx(1.0 + 15 * more)
