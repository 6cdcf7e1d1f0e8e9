"""When the sender looks for what steps have made."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.runtime.engine_thread import OutputThrottle

BEAT_S: Final = 1 / 60
BUSY_S: Final = 0.03

# How long after the one before a step comes, whether somebody waits for it, and how long the
# sender takes for what it has woken up for.
STEPS = st.lists(st.tuples(st.floats(0.0, 0.1), st.booleans(), st.floats(0.0, BUSY_S)), max_size=60)


class Sender:
    """Sleeps until it is woken or wakes by itself, then takes and tells what there is."""

    def __init__(self) -> None:
        self.throttle = OutputThrottle()
        self.now = 100.0
        self.busy_until = self.now
        self.woken = False
        self.there: list[tuple[float, bool]] = []
        self.sent: list[tuple[float, list[tuple[float, bool]]]] = []

    def step(self, *, awaited: bool) -> None:
        """By the engine's thread."""
        self.there.append((self.now, awaited))
        self.woken |= self.throttle.wakes(self.now, awaited=awaited)

    def go_on(self, until: float, takes_s: float) -> None:
        while True:
            left_s = self.throttle.left_s(self.now)
            wakes_at = self.now if self.woken else math.inf if left_s is None else self.now + left_s
            wakes_at = max(wakes_at, self.busy_until)
            if wakes_at > until:
                self.now = until
                return
            self.now, self.woken = wakes_at, False
            self.throttle.record_look(self.now)
            taken, self.there = self.there, []
            if taken:
                self.sent.append((self.now, taken))
                # Others may come while it tells of these.
                self.busy_until = self.now + takes_s
                self.throttle.record_sent(self.now)


@given(STEPS)
def test_nothing_is_left_behind_and_nobody_waits_longer_than_the_pause(
    steps: list[tuple[float, bool, float]],
) -> None:
    sender = Sender()
    for after_s, awaited, takes_s in steps:
        sender.go_on(sender.now + after_s, takes_s)
        sender.step(awaited=awaited)
    sender.go_on(sender.now + 1.0, 0.0)
    assert not sender.there
    assert sum(len(taken) for _, taken in sender.sent) == len(steps)
    for sent_times, taken in sender.sent:
        for there_at, awaited in taken:
            at_most_s = BUSY_S if awaited else BUSY_S + BEAT_S
            assert sent_times <= there_at + at_most_s + 1e-9


@given(st.lists(st.floats(0.0001, 0.02), min_size=1, max_size=300))
def test_fast_engines_are_heard_sixty_times_a_second(gaps: list[float]) -> None:
    sender = Sender()
    for gap_s in gaps:
        sender.go_on(sender.now + gap_s, 0.0)
        sender.step(awaited=False)
    sender.go_on(sender.now + 1.0, 0.0)
    sent_times = [index for index, _ in sender.sent]
    assert all(b - a >= BEAT_S - 1e-9 for a, b in pairwise(sent_times))


@pytest.mark.parametrize("awaited", [True, False])
def test_a_slow_engine_is_not_delayed_and_an_idle_one_wakes_nobody(*, awaited: bool) -> None:
    sender = Sender()
    for _ in range(3):
        sender.step(awaited=awaited)
        sender.go_on(sender.now + 0.1, 0.0)
        assert sender.sent[-1][0] == pytest.approx(sender.now - 0.1)
    assert sender.throttle.left_s(sender.now) is None
