"""Leases: both sides' policies, and the two of them over a link that loses what it likes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.workers.lease import RECONNECT_S, Contact, Lease

LEASE_S = 8.0
TICK_S = 0.25


def judged(lease: Lease, begin: float, seconds: float) -> str | None:
    """What came of looking often for so long."""
    for tick in range(1, round(seconds / TICK_S) + 1):
        if (reason := lease.judge(begin + tick * TICK_S)) is not None:
            return reason
    return None


def test_a_lease_lasts_from_the_last_answer_that_came():
    lease = Lease(0.0, LEASE_S)
    assert judged(lease, 0.0, 4.0) is None
    assert not lease.turn(0)
    first = lease.answer(4.0)
    assert judged(lease, 4.0, 2.0) is None
    assert not lease.turn(first)
    assert judged(lease, 6.0, 5.75) is None
    assert "not been heard for 8 s" in str(lease.judge(12.0))


def test_turns_alone_renew_nothing():
    """Or a gateway that gets no answers would call ranks ended that live on."""
    lease = Lease(0.0, LEASE_S)
    for now in range(1, 8):
        assert judged(lease, now - 1.0, 1.0) is None
        assert lease.turn(0) == (now > 1)
        lease.answer(float(now))
    assert judged(lease, 7.0, 1.0) is not None


def test_a_closed_connection_has_a_moment_to_come_back():
    lease = Lease(0.0, LEASE_S)
    lease.closed(1.0)
    assert lease.judge(1.0 + RECONNECT_S - 0.01) is None
    lease.turn(0)
    assert lease.judge(1.5 + RECONNECT_S) is None
    lease.closed(3.0)
    assert "connection was closed" in str(judged(lease, 3.0, RECONNECT_S + TICK_S))


def test_nobody_is_ended_for_the_sleep_of_the_host():
    lease, contact = Lease(0.0, LEASE_S), Contact(0.0, LEASE_S)
    assert lease.judge(1.0) is None
    assert not contact.judge(1.0)
    assert lease.judge(5000.0) is None
    assert not contact.judge(5000.0)
    assert judged(lease, 5000.0, LEASE_S) is not None


def test_what_is_on_the_way_sleeps_as_well():
    lease = Lease(0.0, LEASE_S)
    first = lease.answer(1.0)
    assert lease.judge(1.0) is None
    assert lease.judge(1001.0) is None
    lease.turn(first)
    assert judged(lease, 1001.0, LEASE_S - TICK_S) is None
    assert lease.judge(1001.0 + LEASE_S) is not None


def test_a_closed_connection_has_its_moment_after_a_sleep():
    lease = Lease(0.0, LEASE_S)
    lease.closed(1.0)
    assert lease.judge(1.0) is None
    assert lease.judge(101.0) is None
    assert judged(lease, 101.0, RECONNECT_S - TICK_S) is None
    assert "connection was closed" in str(lease.judge(101.0 + RECONNECT_S))


def test_who_looks_late_was_asleep_and_who_looks_in_time_was_not():
    """Late is more than a quarter of the lease, and more than a second."""
    for lease_s, gap_s in ((LEASE_S, LEASE_S / 4), (2.0, 1.0)):
        lease, contact = Lease(0.0, lease_s), Contact(0.0, lease_s)
        looks = [gap_s * each for each in range(1, round(lease_s / gap_s) + 1)]
        assert [lease.judge(each) is not None for each in looks] == [
            contact.judge(each) for each in looks
        ]
        assert lease.judge(looks[-1]) is not None
    lease, contact = Lease(0.0, LEASE_S), Contact(0.0, LEASE_S)
    late_s = LEASE_S / 2
    assert lease.judge(late_s) is None
    assert not contact.judge(late_s)
    for tick in range(1, round(LEASE_S / TICK_S)):
        assert not contact.judge(late_s + tick * TICK_S)
    assert judged(lease, late_s, LEASE_S - TICK_S) is None
    assert contact.judge(late_s + LEASE_S)
    assert lease.judge(late_s + LEASE_S) is not None


def test_answers_are_counted_from_one():
    """None is what nobody has got before the first."""
    lease, contact = Lease(0.0, LEASE_S), Contact(0.0, LEASE_S)
    assert contact.number == 0
    assert [lease.answer(0.0), lease.answer(0.0)] == [1, 2]


class LossyLink(RuleBasedStateMachine):
    """A gateway and an agent, each with its clock; what is on the way may be late or lost."""

    @initialize(skew=st.floats(-1000.0, 1000.0))
    def begin(self, skew: float) -> None:
        self.now = 100.0
        self.skew = skew
        self.lease = Lease(self.now + skew, LEASE_S)
        self.contact = Contact(self.now, LEASE_S)
        self.turns: list[int] = []
        self.answers: list[int] = []
        self.ended_at: float | None = None
        self.given_up_at: float | None = None
        self.last_renewal = self.now

    @rule(ticks=st.integers(1, 12))
    def time_passes(self, ticks: int) -> None:
        for _ in range(ticks):
            self.now += TICK_S
            if self.ended_at is None and self.lease.judge(self.now + self.skew) is not None:
                self.ended_at = self.now
            if self.given_up_at is None and self.contact.judge(self.now):
                self.given_up_at = self.now

    @precondition(lambda self: self.given_up_at is None)
    @rule()
    def the_gateway_asks(self) -> None:
        self.turns.append(self.contact.number)

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def a_turn_arrives(self, data: st.DataObject) -> None:
        confirmed = self.turns.pop(data.draw(st.integers(0, len(self.turns) - 1)))
        if self.ended_at is None:
            self.lease.turn(confirmed)
            self.answers.append(self.lease.answer(self.now + self.skew))

    @precondition(lambda self: self.answers and self.given_up_at is None)
    @rule(data=st.data())
    def an_answer_arrives(self, data: st.DataObject) -> None:
        number = self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))
        # Each answer comes by its own turn's connection; a gateway has one turn at a time.
        if number > self.contact.number:
            self.contact.heard(self.now, number)

    @precondition(lambda self: self.turns)
    @rule()
    def a_turn_is_lost(self) -> None:
        self.turns.pop()

    @precondition(lambda self: self.answers)
    @rule()
    def an_answer_is_lost(self) -> None:
        self.answers.pop()

    @precondition(lambda self: self.ended_at is None and self.given_up_at is None)
    @rule()
    def a_whole_round(self) -> None:
        """Two turns without loss renew the lease, whatever was lost before."""
        self.turns.clear()
        self.answers.clear()
        for _ in range(2):
            self.lease.turn(self.contact.number)
            self.contact.heard(self.now, self.lease.answer(self.now + self.skew))
        self.lease.turn(self.contact.number)
        self.last_renewal = self.now

    @invariant()
    def the_gateway_is_never_the_first_to_give_up(self) -> None:
        if getattr(self, "given_up_at", None) is not None:
            assert self.ended_at is not None
            assert self.ended_at <= self.given_up_at

    @invariant()
    def a_renewed_lease_lasts(self) -> None:
        if getattr(self, "ended_at", None) is not None:
            assert self.ended_at - self.last_renewal >= LEASE_S - 1e-6


TestLossyLink = LossyLink.TestCase
TestLossyLink.settings = settings(max_examples=40, stateful_step_count=40)
