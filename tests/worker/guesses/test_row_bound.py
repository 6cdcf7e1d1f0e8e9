"""A batch takes more rows as long as these don't make it slower."""

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
    assert most_rows(_costs({16: 0.010, 32: 0.021})) == 32


def test_a_doubling_that_was_not_worth_it_is_taken_back() -> None:
    assert most_rows(_costs({16: 0.010, 32: 0.012, 64: 0.025})) == 32
    assert most_rows(_costs({16: 0.010, 32: 0.012, 64: 0.014, 128: 0.030})) == 64


def test_as_many_tokens_a_second_are_enough() -> None:
    assert most_rows(_costs({16: 0.010, 32: 0.012, 64: 0.024, 128: 0.048})) == 256


def test_a_few_rows_more_than_half_are_judged_by_their_own_rate() -> None:
    # 72 rows take a quarter longer than 64, and share a figure with 128.
    costs = _costs({16: 0.010, 32: 0.011, 64: 0.016})
    for _ in range(6):
        costs.observe(72, 1, 0.017)
    assert most_rows(costs) == 256


def test_a_doubling_that_made_fewer_tokens_is_tried_again_later() -> None:
    costs = _costs({16: 0.010, 32: 0.012, 64: 0.024, 128: 0.060})
    assert most_rows(costs) == 64
    for _ in range(600):
        costs.observe(64, 1, 0.024)
    assert most_rows(costs) > 64, "the machine may have been busy with other work"
    costs.observe(128, 1, 0.030)
    assert most_rows(costs) > 64, "one step proves nothing"
    for _ in range(5):
        costs.observe(128, 1, 0.030)
    assert most_rows(costs) == 256, "steps of that time don't count any more"
    for _ in range(20):
        costs.observe(128, 1, 0.060)
    assert most_rows(costs) == 64


def test_a_worker_that_knows_the_seconds_of_steps_knows_how_many_rows_pay() -> None:
    costs = _costs({16: 0.010, 32: 0.012, 64: 0.014, 128: 0.030})
    later = StepCosts()
    later.know(costs.seconds)
    assert most_rows(later) == most_rows(costs) == 64


def test_there_is_a_last_one() -> None:
    assert most_rows(_costs(dict.fromkeys((16, 32, 64, 128, 256, 512), 0.01))) == MOST_ROWS
