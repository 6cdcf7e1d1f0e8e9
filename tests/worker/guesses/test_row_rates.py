"""A batch takes more rows until these make far fewer tokens a second."""

from __future__ import annotations

from worker.guesses.costs import StepCosts
from worker.guesses.row_rates import MOST_ROWS
from worker.mlx_lm.guessing import DRAFTED


def _costs(seconds: dict[int, float]) -> StepCosts:
    costs = StepCosts()
    for rows, number in seconds.items():
        for _ in range(6):
            costs.observe(rows, 1, number)
    return costs


def test_nothing_is_known_at_first() -> None:
    assert StepCosts().rates.most_rows() == 32


def test_a_doubling_that_was_not_measured_is_tried() -> None:
    assert _costs({32: 0.012}).rates.most_rows() == 64, "fewer rows never ran"
    assert _costs({16: 0.010, 32: 0.012}).rates.most_rows() == 64
    assert _costs({16: 0.010, 32: 0.040}).rates.most_rows() == 32, "the last one was a loss"
    assert _costs({16: 0.010}).rates.most_rows() == 32, "the first number of rows comes first"


def test_steps_with_guesses_let_more_rows_be_tried() -> None:
    costs = StepCosts()
    for _ in range(6):
        costs.observe(32, 4, 0.02)
        costs.observe(32, DRAFTED, 0.02)
    assert costs.rates.most_rows() == 64
    for rows, seconds in ((32, 0.01), (64, 0.04)):
        for _ in range(6):
            costs.observe(rows, 1, seconds)
    assert costs.rates.most_rows() == 32, "steps without guesses show a loss"


def test_a_doubling_that_was_not_worth_it_is_taken_back() -> None:
    assert _costs({16: 0.010, 32: 0.012, 64: 0.045}).rates.most_rows() == 32
    assert _costs({16: 0.010, 32: 0.012, 64: 0.014, 128: 0.052}).rates.most_rows() == 64


def test_a_loss_that_a_slower_processor_explains_is_none() -> None:
    assert _costs({16: 0.010, 32: 0.020, 64: 0.060, 128: 0.180}).rates.most_rows() == 256


def test_a_few_rows_more_than_half_are_judged_by_their_own_rate() -> None:
    # 72 rows take a quarter longer than 64, and share a figure with 128.
    costs = _costs({16: 0.010, 32: 0.011, 64: 0.016})
    for _ in range(6):
        costs.observe(72, 1, 0.017)
    assert costs.rates.most_rows() == 256


def test_a_doubling_that_made_fewer_tokens_is_tried_again_later() -> None:
    costs = _costs({16: 0.010, 32: 0.012, 64: 0.023, 128: 0.100})
    assert costs.rates.most_rows() == 64
    for _ in range(600):
        costs.observe(64, 1, 0.023)
    assert costs.rates.most_rows() > 64, "the machine may have been busy with other work"
    costs.observe(128, 1, 0.030)
    assert costs.rates.most_rows() > 64, "one step proves nothing"
    for _ in range(5):
        costs.observe(128, 1, 0.030)
    assert costs.rates.most_rows() == 256, "steps of that time don't count any more"
    for _ in range(20):
        costs.observe(128, 1, 0.100)
    assert costs.rates.most_rows() == 64


def test_a_worker_that_knows_the_seconds_of_steps_knows_how_many_rows_pay() -> None:
    costs = _costs({16: 0.010, 32: 0.012, 64: 0.014, 128: 0.052})
    later = StepCosts()
    later.know(costs.seconds)
    assert later.rates.most_rows() == costs.rates.most_rows() == 64


def test_there_is_a_last_one() -> None:
    costs = _costs(dict.fromkeys((16, 32, 64, 128, 256, 512), 0.01))
    assert costs.rates.most_rows() == MOST_ROWS
