"""Whether a worker hangs, and when its model may start again."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.settings import WorkersSettings
from gateway.workers.verdicts import HangDetector, LastExit, RestartPolicy, RestartVerdict

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
        within = [each for each in restarts if begin <= each < begin + SETTINGS.restart_window_s]
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
    assert policy.died(7.0) == (RestartVerdict.BACK_OFF, 7.0)


def _watch(detector: HangDetector, begin: float, end: float, *, has_work: bool) -> str | None:
    """Judge four times a second; the first reason found."""
    now = begin
    while now <= end:
        if reason := detector.judge(now, has_work=has_work):
            return reason
        now += 0.25
    return None


def test_a_silent_worker_hangs_even_without_work():
    detector = HangDetector(0.0, 10.0, 60.0)
    assert _watch(detector, 0.0, 9.9, has_work=False) is None
    assert "heartbeat" in (_watch(detector, 10.0, 10.5, has_work=False) or "")


def test_an_engine_that_stands_still_beside_a_living_heart_hangs():
    detector = HangDetector(0.0, 10.0, 60.0)
    for second in range(60):
        detector.stepped(second, step=7)
        assert _watch(detector, second, second + 0.9, has_work=True) is None
    detector.stepped(60.0, step=7)
    assert "engine step" in (_watch(detector, 60.0, 60.5, has_work=True) or "")


def test_an_engine_without_work_may_stand_still():
    detector = HangDetector(0.0, 10.0, 60.0)
    for second in range(600):
        detector.stepped(second, step=7)
        assert _watch(detector, second, second + 0.9, has_work=False) is None
    # The clock starts with the work.
    detector.stepped(600.0, step=7)
    assert _watch(detector, 600.0, 605.0, has_work=True) is None


def test_a_long_prefill_is_progress_as_long_as_chunks_end():
    detector = HangDetector(0.0, 10.0, 60.0)
    for second in range(600):
        detector.stepped(second, step=second // 50)
        assert _watch(detector, second, second + 0.9, has_work=True) is None


def test_a_gateway_that_was_away_judges_nobody_before_it_has_listened():
    detector = HangDetector(0.0, 10.0, 60.0)
    assert _watch(detector, 0.0, 5.0, has_work=True) is None
    assert detector.judge(500.0, has_work=True) is None
    assert _watch(detector, 500.25, 509.0, has_work=True) is None
    assert _watch(detector, 509.25, 511.0, has_work=True) is not None


def test_a_pause_is_seen_by_the_shorter_of_the_timeouts() -> None:
    detector = HangDetector(0.0, heartbeat_timeout_s=120.0, stall_timeout_s=5.0)
    assert detector.judge(0.25, has_work=True) is None
    assert detector.judge(12.25, has_work=True) is None, "we were away ourselves"


def test_less_than_two_heartbeats_prove_nothing() -> None:
    detector = HangDetector(0.0, heartbeat_timeout_s=0.5, stall_timeout_s=60.0)
    times = [each / 4 for each in range(1, 9)]
    judged = [detector.judge(now, has_work=False) for now in times]
    assert judged[:-1] == [None] * 7
    assert judged[-1] is not None


def test_a_trial_has_one_chance_without_backoffs_too() -> None:
    """Its window is over, so the deaths before it are forgotten."""
    policy = RestartPolicy(msgspec.structs.replace(SETTINGS, restart_limit=1, backoff_limit=0))
    for _ in range(2):
        judged = policy.died(0.0)
    assert judged.verdict is RestartVerdict.GIVE_UP
    policy.ready(400.0)
    assert policy.died(401.0).verdict is RestartVerdict.GIVE_UP


def test_how_a_worker_ended() -> None:
    code = LastExit(at=0.0, code=3, signal=None, reason="", log_tail=[])
    assert code.how == "with code 3"
    assert msgspec.structs.replace(code, code=None).how == "with an unknown status"
    assert msgspec.structs.replace(code, code=None, signal="SIGKILL").how == "by SIGKILL"


def test_an_engine_hangs_as_soon_as_its_time_is_over() -> None:
    detector = HangDetector(0.0, heartbeat_timeout_s=100.0, stall_timeout_s=2.0)
    for now in (0.4, 0.8, 1.2, 1.6):
        assert detector.judge(now, has_work=True) is None
    assert detector.judge(2.0, has_work=True) is not None
