"""A clock for everybody who waits, over sleeps at any time and of any length."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.memory.ledger import Unanswered
from gateway.system.clock import LOOK_S, Countdown, PresentClock, present_clock
from gateway.workers.hang_detector import HangDetector
from tests.gateway.memory.account import Account

HEARTBEAT_S = 10.0
STALL_S = 60.0
DEADLINE_S = 30.0


class Sleeps(RuleBasedStateMachine):
    """A gateway and its worker that look once a second, and sleep and wake together; or the worker
    is stopped alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.time = 1_000.0
        self.clock = PresentClock(lambda: self.time)
        self.began = self.clock.now()
        self.awake_s = 0.0
        self.sleeps = 0
        self.silent_s = 0.0
        self.stopped = False
        self.hang = HangDetector(self.time, HEARTBEAT_S, STALL_S)
        self.hung = False
        self.countdown = Countdown(DEADLINE_S, self.time)
        self.late = False
        self.step = 0

    @rule(seconds=st.integers(1, 20))
    def awake(self, seconds: int) -> None:
        for _ in range(seconds):
            self.time += LOOK_S
            self.awake_s += LOOK_S
            self.silent_s += LOOK_S
            self.look()
            if not self.stopped:
                self.step += 1
                self.silent_s = 0.0
                self.hang.stepped(self.time, self.step)

    @rule(seconds=st.floats(7.0, 500_000.0))
    def asleep(self, seconds: float) -> None:
        """Nobody looks, and nobody speaks. At the wake the gateway may be first."""
        self.time += seconds
        self.sleeps += 1
        self.silent_s = 0.0
        self.look()

    @rule()
    def the_worker_alone_is_stopped(self) -> None:
        self.stopped = True

    def look(self) -> None:
        self.clock.now()
        self.late = self.countdown.left_s(self.time) == 0.0
        if self.hang.judge(self.time, has_work=True) is not None:
            self.hung = True

    @invariant()
    def it_counts_what_somebody_was_there_for(self) -> None:
        passed_s = self.clock.now() - self.began
        assert self.awake_s <= passed_s + 1e-3
        assert passed_s <= self.awake_s + self.sleeps * LOOK_S + 1e-3

    @invariant()
    def nobody_hangs_for_having_slept(self) -> None:
        assert not self.hung or self.stopped

    @invariant()
    def who_hangs_is_found(self) -> None:
        if self.stopped and self.silent_s > HEARTBEAT_S + LOOK_S:
            assert self.hung

    @invariant()
    def a_deadline_has_its_time(self) -> None:
        assert not self.late or self.awake_s + self.sleeps * LOOK_S >= DEADLINE_S


TestSleeps = Sleeps.TestCase
TestSleeps.settings = settings(
    max_examples=100, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_a_worker_that_slept_owes_no_answer() -> None:
    """A recall is out, everybody sleeps for an hour, and the answer comes at the wake."""
    time = 100.0
    clock = PresentClock(lambda: time)
    account = Account()
    account.load("a", 20, busy=True, used=60, wanted=60, at=clock.now())
    account.claim("b", 60, priority=1, now=clock.now())
    account.decide(clock.now())
    time += 3_600.0
    assert account.decide(clock.now()) == []
    for _ in range(20):
        time += LOOK_S
        decisions = account.decide(clock.now())
        if decisions:
            break
    assert isinstance(decisions[0], Unanswered), "and it is found all the same"
    assert time >= 3_700.0 + 10 * LOOK_S


def test_all_of_a_loop_have_one() -> None:
    async def both() -> tuple[PresentClock, PresentClock]:
        return present_clock(), present_clock()

    one, other = asyncio.run(both())
    again, _ = asyncio.run(both())
    assert one is other
    assert again is not one
