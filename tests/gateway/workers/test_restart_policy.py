"""When a model may start again after its worker has died."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.settings import WorkersSettings
from gateway.workers.restart_policy import RestartAction, RestartPolicy

SETTINGS = WorkersSettings(
    restart_limit=2,
    restart_window_s=60.0,
    backoff_limit=3,
    backoff_first_s=1.0,
    backoff_longest_s=3.0,
    breaker_retry_s=300.0,
)


def _policy(jitter: float = 0.0) -> RestartPolicy:
    return RestartPolicy(SETTINGS, lambda: jitter)


def test_restarts_then_backoffs_that_double_then_the_breaker():
    policy = _policy()
    decisions = [policy.died(10.0) for _ in range(7)]
    assert decisions[:2] == [(RestartAction.RESTART, None)] * 2
    assert decisions[2:5] == [
        (RestartAction.BACK_OFF, 11.0),
        (RestartAction.BACK_OFF, 12.0),
        (RestartAction.BACK_OFF, 13.0),
    ]
    assert decisions[5:] == [(RestartAction.GIVE_UP, 310.0)] * 2


def test_the_trial_after_the_breaker_has_one_chance():
    policy = _policy()
    for _ in range(6):
        policy.died(0.0)
    policy.ready(400.0)
    assert policy.died(401.0).action is RestartAction.GIVE_UP


def test_a_worker_that_stays_well_for_a_window_clears_the_record():
    policy = _policy()
    for _ in range(6):
        policy.died(0.0)
    policy.ready(400.0)
    assert policy.died(460.0) == (RestartAction.RESTART, None)
    assert policy.deaths == 1


def test_deaths_that_lie_far_apart_are_not_added_up():
    policy = _policy()
    for now in range(0, 1000, 40):
        policy.ready(now + 1.0)
        assert policy.died(now + 39.0).action is RestartAction.RESTART


def test_a_load_slower_than_the_window_is_not_tried_for_ever():
    policy = _policy()
    actions = [policy.died(now * 600.0).action for now in range(6)]
    assert actions[-1] is RestartAction.GIVE_UP


def test_an_order_of_the_operator_closes_the_breaker():
    policy = _policy()
    for _ in range(6):
        policy.died(0.0)
    policy.forget()
    assert policy.died(1.0).action is RestartAction.RESTART


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
        action, until = policy.died(now)
        assert (until is None) == (action is RestartAction.RESTART)
        if action is RestartAction.RESTART:
            restarts.append(now)
        else:
            assert until is not None
            assert until > now
            now = until
    for begin in restarts:
        within = [
            restart for restart in restarts if begin <= restart < begin + SETTINGS.restart_window_s
        ]
        # A worker that was well for the whole window starts the count anew at its death.
        assert len(within) <= SETTINGS.restart_limit + 1


def test_patience_without_end():
    settings = msgspec.structs.replace(SETTINGS, restart_limit=0, backoff_limit=1_000_000)
    policy = RestartPolicy(settings, lambda: 0.0)
    delays = [(policy.died(0.0).until or 0.0) for _ in range(3000)]
    assert delays[:3] == [1.0, 2.0, 3.0]
    assert set(delays[2:]) == {SETTINGS.backoff_longest_s}


def test_backoffs_without_a_pause():
    policy = RestartPolicy(
        msgspec.structs.replace(SETTINGS, restart_limit=0, backoff_first_s=0.0), lambda: 0.0
    )
    assert policy.died(7.0) == (RestartAction.BACK_OFF, 7.0)


def test_a_trial_has_one_chance_without_backoffs_too() -> None:
    """Its window is over, so the deaths before it are forgotten."""
    policy = RestartPolicy(msgspec.structs.replace(SETTINGS, restart_limit=1, backoff_limit=0))
    for _ in range(2):
        decision = policy.died(0.0)
    assert decision.action is RestartAction.GIVE_UP
    policy.ready(400.0)
    assert policy.died(401.0).action is RestartAction.GIVE_UP
