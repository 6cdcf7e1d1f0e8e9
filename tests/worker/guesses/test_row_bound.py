"""A batch takes more rows as long as these make it faster."""

from __future__ import annotations

from worker.guesses.costs import MOST_ROWS, StepCosts, most_rows


def _costs(seconds: dict[int, float]) -> StepCosts:
    costs = StepCosts()
    for rows, number in seconds.items():
        for _ in range(6):
            costs.observe(rows, 1, number)
    return costs


def test_nothing_is_known_at_first() -> None:
    assert most_rows(StepCosts()) == 32


def test_a_doubling_that_was_not_measured_is_tried_if_the_last_one_was_worth_it() -> None:
    assert most_rows(_costs({16: 0.010, 32: 0.012})) == 64
    assert most_rows(_costs({16: 0.010, 32: 0.020})) == 32


def test_a_doubling_that_was_not_worth_it_is_taken_back() -> None:
    assert most_rows(_costs({16: 0.010, 32: 0.012, 64: 0.024})) == 32
    assert most_rows(_costs({16: 0.010, 32: 0.012, 64: 0.014, 128: 0.030})) == 64


def test_there_is_a_last_one() -> None:
    assert most_rows(_costs(dict.fromkeys((16, 32, 64, 128, 256, 512), 0.01))) == MOST_ROWS
