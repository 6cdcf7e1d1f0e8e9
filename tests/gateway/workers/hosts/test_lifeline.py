"""How long a rank lives without its gateway, on both clocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.workers.lifeline import PING_S, SILENCE_S, Lifeline, gone_at
from protocol.process import grace_s

TICK_S = 0.5


def test_rank_lives_while_pongs_come() -> None:
    lifeline = Lifeline(0.0)
    for second in range(100):
        lifeline.pong(lifeline.ping(float(second)))
        assert not lifeline.is_cut(second + SILENCE_S)


def test_rank_ends_after_the_silence() -> None:
    lifeline = Lifeline(0.0)
    for second in range(100):
        lifeline.ping(float(second))
    assert not lifeline.is_cut(SILENCE_S)
    assert lifeline.is_cut(SILENCE_S + 0.1)


def test_late_pong_counts_from_its_ping() -> None:
    lifeline = Lifeline(0.0)
    first = lifeline.ping(1.0)
    lifeline.ping(2.0)
    lifeline.pong(first)
    assert lifeline.is_cut(1.0 + SILENCE_S + 0.1)
    # A pong that comes twice, or that nobody waits for, changes nothing.
    lifeline.pong(first)
    lifeline.pong(99)
    assert lifeline.is_cut(1.0 + SILENCE_S + 0.1)


@given(
    delays=st.lists(st.tuples(st.floats(0, 30), st.floats(0, 30)), min_size=1, max_size=30),
    skew=st.floats(-1000, 1000),
)
def test_remote_program_ends_before_the_gateway_counts_on_it(
    delays: list[tuple[float, float]], skew: float
) -> None:
    """Whenever pings and pongs come, in order, and whatever the two clocks show."""
    lifeline = Lifeline(skew)
    ping_at, pong_at, heard_at = 0.0, 0.0, 0.0
    pongs: list[tuple[float, int]] = []
    for there_s, back_s in delays:
        number = lifeline.ping(ping_at + skew)
        pong_at = max(pong_at, ping_at + there_s)
        heard_at = max(heard_at, pong_at + back_s)
        pongs.append((heard_at, number))
        ping_at += PING_S
    gone_by = gone_at(pong_at, pong_at, 0)
    for received_at, number in pongs:
        if not lifeline.is_cut(received_at + skew):
            lifeline.pong(number)
    ends_by = gone_by - grace_s(0)
    assert lifeline.is_cut(ends_by + skew)
