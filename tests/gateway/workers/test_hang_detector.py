"""Whether a worker hangs."""

from __future__ import annotations

from gateway.workers.hang_detector import HangDetector


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
    times = [index / 4 for index in range(1, 9)]
    judged = [detector.judge(now, has_work=False) for now in times]
    assert judged[:-1] == [None] * 7
    assert judged[-1] is not None


def test_an_engine_hangs_as_soon_as_its_time_is_over() -> None:
    detector = HangDetector(0.0, heartbeat_timeout_s=100.0, stall_timeout_s=2.0)
    for now in (0.4, 0.8, 1.2, 1.6):
        assert detector.judge(now, has_work=True) is None
    assert detector.judge(2.0, has_work=True) is not None
