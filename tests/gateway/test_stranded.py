"""Memory that did not come back, in a machine where other things move too."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gateway.memory.stranded import Finding, Reading, Stranded

GB = 1_000_000_000


class Machine:
    """Gives a reading a second."""

    def __init__(self, stranded: Stranded | None = None) -> None:
        self.stranded = stranded or Stranded()
        self.now = 0.0
        self.kernel = 3 * GB
        self.others = 5 * GB
        self.workers = 0
        self.busy = False

    def seconds(self, count: int) -> list[Finding]:
        findings = []
        for _ in range(count):
            self.now += 1.0
            used = self.kernel + self.others + self.workers
            findings += self.stranded.observe(
                Reading(self.now, used, self.workers, self.others, self.busy)
            )
        return findings

    def load(self, held: int) -> None:
        self.busy = True
        self.workers += held
        self.seconds(3)
        self.busy = False
        self.seconds(10)

    def end(self, held: int, lost: int = 0) -> None:
        """`lost` of it stays taken, by nobody."""
        self.workers -= held
        self.kernel += lost
        self.stranded.ended("demo", held, self.now)


def test_what_came_back_is_not_missed() -> None:
    machine = Machine()
    machine.load(20 * GB)
    machine.end(20 * GB)
    assert machine.stranded.undecided
    assert machine.seconds(10) == [Finding("demo", 20 * GB, 0)]
    assert not machine.stranded.undecided
    assert machine.stranded.bytes == 0


def test_what_did_not_is() -> None:
    machine = Machine()
    machine.load(20 * GB)
    machine.end(20 * GB, lost=14 * GB)
    assert machine.seconds(4) == [], "it takes several quiet readings"
    assert machine.seconds(6) == [Finding("demo", 20 * GB, 14 * GB)]
    assert machine.stranded.bytes == 14 * GB


def test_nothing_is_decided_while_others_are_busy() -> None:
    machine = Machine()
    machine.load(20 * GB)
    machine.end(20 * GB, lost=14 * GB)
    machine.busy = True
    assert machine.seconds(60) == []
    assert machine.stranded.bytes == 0
    machine.busy = False
    assert machine.seconds(10) == [Finding("demo", 20 * GB, 14 * GB)]


def test_memory_that_comes_back_late_is_none() -> None:
    """Readings that don't agree are not quiet."""
    machine = Machine()
    machine.load(20 * GB)
    machine.end(20 * GB, lost=12 * GB)
    for _ in range(12):
        assert machine.seconds(1) == []
        machine.kernel -= 1 * GB
    assert machine.seconds(10) == [Finding("demo", 20 * GB, 0)]


def test_what_another_program_takes_is_its_own() -> None:
    machine = Machine()
    machine.load(20 * GB)
    machine.end(20 * GB)
    machine.others += 9 * GB
    assert machine.seconds(10) == [Finding("demo", 20 * GB, 0)]


def test_it_decays_when_the_memory_turns_up() -> None:
    machine = Machine()
    machine.load(20 * GB)
    machine.end(20 * GB, lost=14 * GB)
    machine.seconds(10)
    machine.kernel -= 10 * GB
    machine.seconds(10)
    assert machine.stranded.bytes == 4 * GB
    machine.kernel -= 4 * GB
    machine.seconds(10)
    assert machine.stranded.bytes == 0
    machine.load(20 * GB)
    machine.end(20 * GB, lost=2 * GB)
    machine.seconds(10)
    assert machine.stranded.bytes == 2 * GB


def test_what_an_earlier_gateway_found_stays_and_decays() -> None:
    machine = Machine(Stranded(6 * GB))
    machine.seconds(10)
    assert machine.stranded.bytes == 6 * GB
    machine.kernel -= 6 * GB
    machine.seconds(10)
    assert machine.stranded.bytes == 0


def test_two_that_ended_share_what_is_missing() -> None:
    machine = Machine()
    machine.load(30 * GB)
    machine.end(10 * GB, lost=3 * GB)
    machine.end(20 * GB)
    assert [each.missing_bytes for each in machine.seconds(10)] == [1 * GB, 2 * GB]
    assert machine.stranded.bytes == 3 * GB


def test_the_question_is_dropped_in_the_end() -> None:
    machine = Machine()
    machine.load(20 * GB)
    machine.end(20 * GB, lost=14 * GB)
    machine.busy = True
    machine.seconds(700)
    assert not machine.stranded.undecided


@given(st.integers(0, 2**32))
def test_never_negative_and_never_more_than_was_held(seed: int) -> None:
    chance = random.Random(seed)
    machine = Machine()
    machine.seconds(10)
    held_in_all = 0
    for _ in range(30):
        machine.kernel = max(0, machine.kernel + chance.randint(-GB, GB))
        machine.others = max(0, machine.others + chance.randint(-GB, GB))
        machine.busy = chance.random() < 0.3
        if chance.random() < 0.3:
            held = chance.randint(1, 10 * GB)
            held_in_all += held
            machine.load(held)
            machine.end(held, lost=chance.randint(0, held))
        machine.seconds(chance.randint(1, 8))
        assert 0 <= machine.stranded.bytes <= held_in_all
