from __future__ import annotations

import math
import pickle

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.access.api_key import KeyTerms
from gateway.access.limits import MINUTE_S, STEP_S, Denial, KeyLimits, Seat, Window
from protocol.answers import Usage


def test_amount_counts_for_a_minute() -> None:
    window = Window()
    window.add(100.1, 3)
    window.add(100.2, 2)
    assert window.taken(100.3) == 5
    assert window.taken(160.2) == 5
    assert window.taken(160.2 + STEP_S) == 0


def test_many_amounts_at_once_take_no_more_memory_than_one() -> None:
    one, many = Window(), Window()
    one.add(100.0, 1000)
    for _ in range(1000):
        many.add(100.0, 1)
    assert len(pickle.dumps(many)) == len(pickle.dumps(one))


def test_says_when_it_is_below_a_limit_again() -> None:
    window = Window()
    window.add(0.0, 4)
    window.add(10.0, 4)
    assert window.below_s(20.0, 9) == 0.0
    assert window.below_s(20.0, 5) == MINUTE_S + STEP_S - 20.0
    assert window.below_s(20.0, 4) == MINUTE_S + STEP_S - 10.0
    assert window.taken(MINUTE_S + STEP_S) == 4


def test_headers_are_about_limits_that_there_are() -> None:
    limits = KeyLimits(KeyTerms(rpm=2))
    _admitted(limits)
    assert dict(limits.headers(0.0)) == {
        b"x-ratelimit-limit-requests": b"2",
        b"x-ratelimit-remaining-requests": b"1",
        b"x-ratelimit-reset-requests": b"61s",
    }
    assert dict(KeyLimits(KeyTerms()).headers(0.0)) == {}


def test_denial_has_whole_seconds() -> None:
    limits = KeyLimits(KeyTerms(rpm=1))
    _admitted(limits)
    for before_s, wait_s in ((2.5, 3), (1.0, 1), (0.1, 1)):
        denial = limits.admit(MINUTE_S + STEP_S - before_s)
        assert isinstance(denial, Denial)
        assert denial.retry_after_s == wait_s
    _admitted(limits, MINUTE_S + STEP_S)


def test_other_terms_hold_at_once() -> None:
    limits = KeyLimits(KeyTerms(rpm=1))
    assert isinstance(limits.admit(0.0), Seat)
    assert isinstance(limits.admit(0.0), Denial)
    limits.terms = KeyTerms(rpm=2)
    assert isinstance(limits.admit(0.0), Seat)
    assert isinstance(limits.admit(0.0), Denial)


class _Answer:
    """An answer to a prompt of so many tokens."""

    def __init__(self, prompt_tokens: int = 0, *, repeats: bool = False) -> None:
        self.prompt_counts = not repeats
        self.spent: Usage | None = None
        self._prompt_tokens = prompt_tokens

    def make(self, tokens: int) -> None:
        self.spent = Usage(self._prompt_tokens, tokens)


def test_each_answer_takes_a_place_until_nobody_holds_it() -> None:
    limits = KeyLimits(KeyTerms(concurrent=3))
    seat = _admitted(limits)
    assert seat.reserve([_Answer(), _Answer()]) is None
    other = _admitted(limits)
    assert isinstance(limits.admit(0.0), Denial)
    wide = other.reserve([_Answer()] * 2)
    assert wide is not None
    assert wide.retry_after_s == 1
    never = other.reserve([_Answer()] * 4)
    assert never is not None
    assert never.retry_after_s is None
    # What goes on in the mailbox has no client any more.
    seat.hold()
    seat.release()
    assert isinstance(limits.admit(0.0), Denial)
    seat.release()
    assert other.reserve([_Answer()] * 3) is None


def test_tokens_count_while_they_are_computed() -> None:
    limits = KeyLimits(KeyTerms(tpm=100))
    seat = _admitted(limits)
    # The prompt counts once.
    answers = [_Answer(40), _Answer(40, repeats=True), _Answer(40, repeats=True)]
    assert seat.reserve(answers) is None
    assert dict(limits.headers(0.0))[b"x-ratelimit-remaining-tokens"] == b"100"
    for answer in answers:
        answer.make(15)
    assert dict(limits.headers(0.0))[b"x-ratelimit-remaining-tokens"] == b"15"
    answers[1].make(30)
    assert limits.exhausted(0.0)
    denial = limits.admit(0.0)
    assert isinstance(denial, Denial)
    assert "100 tokens a minute" in denial.reason
    limits.spend(0.0, 100)
    seat.release()
    assert limits.exhausted(59.0)
    assert not limits.exhausted(61.0)


def test_answers_from_before_restart_take_places() -> None:
    limits = KeyLimits(KeyTerms(concurrent=1))
    seats = [limits.seat(), limits.seat()]
    seats[0].count([_Answer()] * 3)
    assert isinstance(limits.admit(0.0), Denial)
    for seat in seats:
        seat.release()
    _admitted(limits)


def _admitted(limits: KeyLimits, now: float = 0.0) -> Seat:
    seat = limits.admit(now)
    assert isinstance(seat, Seat)
    return seat


class AttackedLimits(RuleBasedStateMachine):
    """Somebody asks as often as they like; beside it stands what was let through, one by one."""

    @initialize(
        rpm=st.none() | st.integers(1, 6),
        tpm=st.none() | st.integers(1, 50),
        concurrent=st.none() | st.integers(1, 3),
    )
    def set_terms(self, rpm: int | None, tpm: int | None, concurrent: int | None) -> None:
        self.terms = KeyTerms(rpm=rpm, tpm=tpm, concurrent=concurrent)
        self.limits = KeyLimits(self.terms)
        self.now = 0.0
        self.requests: list[float] = []
        self.tokens: list[tuple[float, int]] = []
        self.running: list[Seat] = []

    def within(self, seconds: float) -> tuple[int, int]:
        since = self.now - seconds
        return (
            sum(began_at > since for began_at in self.requests),
            sum(count for ended_at, count in self.tokens if ended_at > since),
        )

    @rule(seconds=st.floats(0, 90, allow_nan=False))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def ask(self) -> None:
        denial = self.limits.admit(self.now)
        if isinstance(denial, Seat):
            requests, tokens = self.within(MINUTE_S)
            assert self.terms.rpm is None or requests < self.terms.rpm
            assert self.terms.tpm is None or tokens < self.terms.tpm
            assert self.terms.concurrent is None or len(self.running) < self.terms.concurrent
            self.requests.append(self.now)
            self.running.append(denial)
            return
        requests, tokens = self.within(MINUTE_S + STEP_S)
        assert (
            (self.terms.rpm is not None and requests >= self.terms.rpm)
            or (self.terms.tpm is not None and tokens >= self.terms.tpm)
            or (self.terms.concurrent is not None and len(self.running) >= self.terms.concurrent)
        ), "it was turned away for nothing"
        assert 1 <= (denial.retry_after_s or 0) <= math.ceil(MINUTE_S + STEP_S)

    @precondition(lambda self: bool(self.running))
    @rule(tokens=st.integers(0, 60))
    def end(self, tokens: int) -> None:
        self.limits.spend(self.now, tokens)
        self.running.pop().release()
        self.tokens.append((self.now, tokens))

    @rule()
    def come_back_in_time(self) -> None:
        """A single client that waits as long as it was asked to is admitted."""
        while self.running:
            self.end(tokens=0)
        # Requests and tokens may each ask for their time.
        for _ in range(2):
            denial = self.limits.admit(self.now)
            if isinstance(denial, Seat):
                self.requests.append(self.now)
                self.running.append(denial)
                return
            self.now += denial.retry_after_s or 0
        self.requests.append(self.now)
        self.running.append(_admitted(self.limits, self.now))

    @invariant()
    def what_is_left_is_no_more_than_there_is(self) -> None:
        if not hasattr(self, "limits"):
            return
        for name, value in self.limits.headers(self.now):
            if name.startswith(b"x-ratelimit-remaining"):
                assert int(value) >= 0


TestAttackedLimits = AttackedLimits.TestCase
