"""The finished requests that are kept, and the phases of their lives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.http.wire.finished import (
    FinishedRequest,
    FinishedRequests,
    PhaseStatus,
    phases,
    tokens_per_s,
)
from gateway.requests.use import Timing
from protocol.answers import Usage


def _finished(name: str) -> FinishedRequest:
    return FinishedRequest(
        id=name,
        path="/v1/chat/completions",
        model="m",
        key=None,
        ended_at=0.0,
        seconds=1.0,
        status=200,
        outcome="ok",
        error=None,
        prompt_tokens=None,
        cached_tokens=None,
        completion_tokens=None,
        queue_s=None,
        first_token_s=None,
        tokens_per_s=None,
        phases=[],
    )


@given(st.integers(1, 20), st.integers(0, 50), st.integers(0, 60))
def test_last_requests_are_listed_and_all_are_counted(most: int, ended: int, asked: int) -> None:
    finished = FinishedRequests(most)
    for number in range(ended):
        finished.add(_finished(str(number)))
    newest = [str(number) for number in reversed(range(ended))]
    assert [request.id for request in finished.recent(asked)] == newest[: min(most, asked)]
    assert finished.count == ended


def test_phases_begin_at_arrival() -> None:
    timing = Timing(101.0)
    timing.sent(102.0)
    timing.sent(103.0)
    timing.enter("tokens", 104.0)
    timing.enter("tokens", 105.0)
    timing.enter("parked", 106.0)
    timing.sent(108.0)
    timing.enter("tokens", 109.0)
    timing.last_token_at = 111.0
    moments = [(phase.kind, phase.begin_s, phase.end_s) for phase in _phases(timing)]
    assert moments == [
        ("prefill", 2.0, 4.0),
        ("tokens", 4.0, 6.0),
        ("parked", 6.0, 8.0),
        ("resumed", 8.0, 9.0),
        ("tokens", 9.0, 20.0),
    ]
    # Two seconds before the worker's end, and two behind it until the last token.
    assert tokens_per_s(Usage(7, 41), [timing]) == 10.0


def _phases(timing: Timing) -> list[PhaseStatus]:
    return phases([timing], 100.0, 120.0, passed=False)


def test_phases_of_often_parked_request_are_bounded() -> None:
    timing = Timing(0.0)
    for second in range(1000):
        timing.enter("parked", float(second))
        timing.sent(second + 0.5)
    assert len(timing.phases) == 64


def test_forwarded_answer_has_one_phase() -> None:
    (only,) = phases([], 100.0, 102.5, passed=True)
    assert (only.kind, only.begin_s, only.end_s) == ("answer", 0.0, 2.5)
    assert phases([], 100.0, 100.1, passed=False) == [], "it was refused at once"
    assert tokens_per_s(Usage(7, 41), []) is None
