from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.keys.api_key import Terms
from gateway.keys.limits import Limits
from gateway.keys.window import MINUTE_S, STEP_S, Window


def test_what_is_taken_counts_for_a_minute() -> None:
    window = Window()
    window.add(100.1, 3)
    window.add(100.2, 2)
    assert window.taken(100.3) == 5
    assert window.taken(160.2) == 5
    assert window.taken(160.2 + STEP_S) == 0


def test_says_when_it_is_below_a_limit_again() -> None:
    window = Window()
    window.add(0.0, 4)
    window.add(10.0, 4)
    assert window.below_s(20.0, 9) == 0.0
    assert window.below_s(20.0, 5) == MINUTE_S + STEP_S - 20.0
    assert window.below_s(20.0, 4) == MINUTE_S + STEP_S - 10.0


def test_headers_are_about_limits_that_there_are() -> None:
    limits = Limits(Terms(rpm=2))
    assert limits.admit(0.0) is None
    assert dict(limits.headers(0.0)) == {
        b"x-ratelimit-limit-requests": b"2",
        b"x-ratelimit-remaining-requests": b"1",
        b"x-ratelimit-reset-requests": b"61s",
    }
    assert dict(Limits(Terms()).headers(0.0)) == {}


def test_other_terms_hold_at_once() -> None:
    limits = Limits(Terms(rpm=1))
    assert limits.admit(0.0) is None
    assert limits.admit(0.0) is not None
    limits.terms = Terms(rpm=2)
    assert limits.admit(0.0) is None
    assert limits.admit(0.0) is not None


class AttackedLimits(RuleBasedStateMachine):
    """Somebody asks as often as they like; beside it stands what was let through, one by one."""

    @initialize(
        rpm=st.none() | st.integers(1, 6),
        tpm=st.none() | st.integers(1, 50),
        concurrent=st.none() | st.integers(1, 3),
    )
    def begin(self, rpm: int | None, tpm: int | None, concurrent: int | None) -> None:
        self.terms = Terms(rpm=rpm, tpm=tpm, concurrent=concurrent)
        self.limits = Limits(self.terms)
        self.now = 0.0
        self.requests: list[float] = []
        self.tokens: list[tuple[float, int]] = []
        self.running = 0

    def within(self, seconds: float) -> tuple[int, int]:
        since = self.now - seconds
        return (
            sum(at > since for at in self.requests),
            sum(count for at, count in self.tokens if at > since),
        )

    @rule(seconds=st.floats(0, 90, allow_nan=False))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def ask(self) -> None:
        denial = self.limits.admit(self.now)
        if denial is None:
            requests, tokens = self.within(MINUTE_S)
            assert self.terms.rpm is None or requests < self.terms.rpm
            assert self.terms.tpm is None or tokens < self.terms.tpm
            assert self.terms.concurrent is None or self.running < self.terms.concurrent
            self.requests.append(self.now)
            self.running += 1
            return
        requests, tokens = self.within(MINUTE_S + STEP_S)
        assert (
            (self.terms.rpm is not None and requests >= self.terms.rpm)
            or (self.terms.tpm is not None and tokens >= self.terms.tpm)
            or (self.terms.concurrent is not None and self.running >= self.terms.concurrent)
        ), "it was turned away for nothing"
        assert 1 <= denial.retry_after_s <= math.ceil(MINUTE_S + STEP_S)

    @precondition(lambda self: self.running > 0)
    @rule(tokens=st.integers(0, 60))
    def end(self, tokens: int) -> None:
        self.limits.release(self.now, tokens)
        self.running -= 1
        self.tokens.append((self.now, tokens))

    @rule()
    def come_back_when_told(self) -> None:
        """Who is alone, and waits as long as it was told, is let in."""
        while self.running:
            self.end(tokens=0)
        # Requests and tokens may each ask for their time.
        for _ in range(2):
            denial = self.limits.admit(self.now)
            if denial is None:
                self.requests.append(self.now)
                self.running += 1
                return
            self.now += denial.retry_after_s
        assert self.limits.admit(self.now) is None
        self.requests.append(self.now)
        self.running += 1

    @invariant()
    def what_is_left_is_no_more_than_there_is(self) -> None:
        if not hasattr(self, "limits"):
            return
        for name, value in self.limits.headers(self.now):
            if name.startswith(b"x-ratelimit-remaining"):
                assert int(value) >= 0


TestAttackedLimits = AttackedLimits.TestCase


def test_another_gateway_goes_on_counting() -> None:
    terms = Terms(rpm=2, tpm=100)
    before, after = Limits(terms), Limits(terms)
    assert before.admit(1000.0) is None
    before.release(1000.0, 99)
    after.restore(before.state)
    assert after.admit(1001.0) is None
    after.release(1001.0, 1)
    denial = after.admit(1002.0)
    assert denial is not None
    assert "2 requests a minute" in denial.reason
    # What came before it leaves as it would have there.
    assert after.admit(1061.0) is None
    assert dict(after.headers(1062.0)) == {
        b"x-ratelimit-limit-requests": b"2",
        b"x-ratelimit-remaining-requests": b"1",
        b"x-ratelimit-reset-requests": b"60s",
        b"x-ratelimit-limit-tokens": b"100",
        b"x-ratelimit-remaining-tokens": b"100",
        b"x-ratelimit-reset-tokens": b"0s",
    }
