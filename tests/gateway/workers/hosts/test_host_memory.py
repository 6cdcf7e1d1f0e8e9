"""Memory of a host: reserved and held bytes within one budget."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.workers.ssh_host import HostReservations

BUDGET = 1_000_000_000
SIZES = st.integers(0, BUDGET * 6 // 5)


def host_memory(budget_bytes: int) -> HostReservations:
    memory = HostReservations()
    memory.budget_bytes = budget_bytes
    return memory


def test_refusal_has_the_numbers():
    memory = host_memory(10_000_000_000)
    assert memory.admit(1, 4_000_000_000) is None
    assert memory.admit(2, 7_000_000_000) == (
        "it needs 7.0 GB, and 6.0 GB of the budget of 10.0 GB is free; other ranks have 4.0 GB"
    )


def test_rank_takes_up_what_it_holds_beyond_its_reservation():
    memory = host_memory(10_000_000_000)
    assert memory.admit(1, 4_000_000_000) is None
    memory.measure(1, 9_000_000_000)
    assert memory.free_bytes == 1_000_000_000
    memory.measure(1, 1_000_000_000)
    assert memory.free_bytes == 6_000_000_000


def test_reservation_is_raised_as_far_as_the_budget_allows():
    memory = host_memory(10_000_000_000)
    assert memory.admit(1, 4_000_000_000) is None
    assert memory.admit(2, 3_000_000_000) is None
    memory.measure(1, 5_000_000_000)
    assert memory.raise_to(1, 6_000_000_000) == 6_000_000_000
    assert memory.raise_to(1, 9_000_000_000) == 7_000_000_000
    assert memory.free_bytes == 0
    # A reservation never shrinks.
    assert memory.raise_to(1, 1_000_000_000) == 7_000_000_000
    assert memory.raise_to(2, 4_000_000_000) == 3_000_000_000


class Host(RuleBasedStateMachine):
    ranks = Bundle("ranks")

    def __init__(self) -> None:
        super().__init__()
        self.memory = host_memory(BUDGET)
        self.reserved: dict[int, int] = {}
        self.held: dict[int, int] = {}
        self.count = 0

    @rule(target=ranks, needed=SIZES)
    def admit(self, needed: int) -> int:
        self.count += 1
        rank = self.count
        free = self.memory.free_bytes
        refusal = self.memory.admit(rank, needed)
        assert (refusal is None) == (needed <= free)
        if refusal is None:
            self.reserved[rank] = needed
            self.held[rank] = 0
        return rank

    @rule(rank=ranks, held=SIZES)
    def measure(self, rank: int, held: int) -> None:
        """Also of a rank that was refused, or has ended."""
        self.memory.measure(rank, held)
        if rank in self.held:
            self.held[rank] = held

    @rule(rank=consumes(ranks))
    def release(self, rank: int) -> None:
        self.memory.release(rank)
        self.reserved.pop(rank, None)
        self.held.pop(rank, None)

    @invariant()
    def ranks_share_no_bytes(self) -> None:
        taken = sum(max(size, self.held[rank]) for rank, size in self.reserved.items())
        assert self.memory.taken_bytes == taken
        assert self.memory.free_bytes == max(0, BUDGET - taken)
        assert self.memory.held_bytes == sum(self.held.values())
        assert sum(self.reserved.values()) <= BUDGET


TestHost = Host.TestCase
TestHost.settings = settings(max_examples=40, stateful_step_count=40)
