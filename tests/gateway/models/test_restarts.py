"""When a model may start again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.workers.restarts import RestartLimits, RestartPolicy, RestartVerdict

LIMITS = RestartLimits(
    restarts=2, window_s=60.0, backoffs=3, first_s=1.0, longest_s=3.0, retry_s=300.0
)


def _policy(jitter: float = 0.0) -> RestartPolicy:
    return RestartPolicy(LIMITS, lambda: jitter)


def test_restarts_then_backoffs_that_double_then_the_breaker():
    policy = _policy()
    judgements = [policy.died(10.0) for _ in range(7)]
    assert judgements[:2] == [(RestartVerdict.RESTART, None)] * 2
    assert judgements[2:5] == [
        (RestartVerdict.BACK_OFF, 11.0),
        (RestartVerdict.BACK_OFF, 12.0),
        (RestartVerdict.BACK_OFF, 13.0),
    ]
    assert judgements[5:] == [(RestartVerdict.GIVE_UP, 310.0)] * 2


def test_the_trial_after_the_breaker_has_one_chance():
    policy = _policy()
    for _ in range(6):
        policy.died(0.0)
    policy.ready(400.0)
    assert policy.died(401.0).verdict is RestartVerdict.GIVE_UP


def test_a_worker_that_stays_well_for_a_window_clears_the_record():
    policy = _policy()
    for _ in range(6):
        policy.died(0.0)
    policy.ready(400.0)
    assert policy.died(460.0) == (RestartVerdict.RESTART, None)
    assert policy.deaths == 1


def test_deaths_that_lie_far_apart_are_not_added_up():
    policy = _policy()
    for now in range(0, 1000, 40):
        policy.ready(now + 1.0)
        assert policy.died(now + 39.0).verdict is RestartVerdict.RESTART


def test_a_load_slower_than_the_window_is_not_tried_for_ever():
    policy = _policy()
    verdicts = [policy.died(now * 600.0).verdict for now in range(6)]
    assert verdicts[-1] is RestartVerdict.GIVE_UP


def test_an_order_of_the_operator_closes_the_breaker():
    policy = _policy()
    for _ in range(6):
        policy.died(0.0)
    policy.forget()
    assert policy.died(1.0).verdict is RestartVerdict.RESTART


def test_jitter_shortens_a_delay_by_up_to_a_half():
    policy = _policy(jitter=1.0)
    policy.died(0.0)
    policy.died(0.0)
    assert policy.died(0.0).until == 0.5


@given(
    steps=st.lists(st.tuples(st.booleans(), st.floats(0, 200)), min_size=1, max_size=60),
    jitter=st.floats(0, 1),
)
def test_never_more_restarts_at_once_within_a_window_than_allowed(
    steps: list[tuple[bool, float]], jitter: float
):
    policy = _policy(jitter)
    now = 0.0
    restarts: list[float] = []
    for becomes_ready, passes_s in steps:
        if becomes_ready:
            policy.ready(now)
        now += passes_s
        verdict, until = policy.died(now)
        assert (until is None) == (verdict is RestartVerdict.RESTART)
        if verdict is RestartVerdict.RESTART:
            restarts.append(now)
        else:
            assert until is not None
            assert until > now
            now = until
    for begin in restarts:
        within = [each for each in restarts if begin <= each < begin + LIMITS.window_s]
        # A worker that was well for the whole window starts the count anew at its death.
        assert len(within) <= LIMITS.restarts + 1


def test_patience_without_end():
    limits = LIMITS._replace(restarts=0, backoffs=1_000_000)
    policy = RestartPolicy(limits, lambda: 0.0)
    delays = [(policy.died(0.0).until or 0.0) for _ in range(3000)]
    assert delays[:3] == [1.0, 2.0, 3.0]
    assert set(delays[2:]) == {LIMITS.longest_s}


def test_backoffs_without_a_pause():
    policy = RestartPolicy(LIMITS._replace(restarts=0, first_s=0.0), lambda: 0.0)
    assert policy.died(7.0) == (RestartVerdict.BACK_OFF, 7.0)
