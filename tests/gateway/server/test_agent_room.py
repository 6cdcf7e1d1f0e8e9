"""Admission on a host: what is promised and what is held, within one budget."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.server.agent_sessions import RankMemory

BUDGET = 1_000_000_000
SIZES = st.integers(0, BUDGET * 6 // 5)


def test_a_refusal_has_the_numbers():
    room = RankMemory(10_000_000_000)
    assert room.admit("a", 4_000_000_000) is None
    assert room.admit("b", 7_000_000_000) == (
        "it needs 7.0 GB, and 6.0 GB of the budget of 10.0 GB is free; other ranks have 4.0 GB"
    )


def test_a_rank_that_holds_more_than_it_was_promised_has_that():
    room = RankMemory(10_000_000_000)
    assert room.admit("a", 4_000_000_000) is None
    room.note("a", 9_000_000_000)
    assert room.free_bytes == 1_000_000_000
    room.note("a", 1_000_000_000)
    assert room.free_bytes == 6_000_000_000


def test_a_promise_is_raised_as_far_as_there_is_room():
    room = RankMemory(10_000_000_000)
    assert room.admit("a", 4_000_000_000) is None
    assert room.admit("b", 3_000_000_000) is None
    room.note("a", 5_000_000_000)
    assert room.raise_to("a", 6_000_000_000) == 6_000_000_000
    assert room.raise_to("a", 9_000_000_000) == 7_000_000_000
    assert room.free_bytes == 0
    # What was promised stays.
    assert room.raise_to("a", 1_000_000_000) == 7_000_000_000
    assert room.raise_to("b", 4_000_000_000) == 3_000_000_000


class Host(RuleBasedStateMachine):
    ranks = Bundle("ranks")

    def __init__(self) -> None:
        super().__init__()
        self.room = RankMemory(BUDGET)
        self.promised: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self.count = 0

    @rule(target=ranks, needed=SIZES)
    def ask(self, needed: int) -> str:
        self.count += 1
        rank = str(self.count)
        free = self.room.free_bytes
        refusal = self.room.admit(rank, needed)
        assert (refusal is None) == (needed <= free)
        if refusal is None:
            self.promised[rank] = needed
            self.held[rank] = 0
        return rank

    @rule(rank=ranks, held=SIZES)
    def read(self, rank: str, held: int) -> None:
        """Also of one that was refused, or is gone."""
        self.room.note(rank, held)
        if rank in self.held:
            self.held[rank] = held

    @rule(rank=consumes(ranks))
    def end(self, rank: str) -> None:
        self.room.gone(rank)
        self.promised.pop(rank, None)
        self.held.pop(rank, None)

    @invariant()
    def nobody_has_what_another_has(self) -> None:
        taken = sum(max(self.promised[each], self.held[each]) for each in self.promised)
        assert self.room.taken_bytes == taken
        assert self.room.free_bytes == max(0, BUDGET - taken)
        assert self.room.held_bytes == sum(self.held.values())
        assert sum(self.promised.values()) <= BUDGET


TestHost = Host.TestCase
TestHost.settings = settings(max_examples=40, stateful_step_count=40)
