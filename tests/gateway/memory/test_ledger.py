"""What is held, what is coming back, and what is left of the budget."""

from __future__ import annotations

import pytest

from gateway.config.model import Group, Groups
from gateway.memory.allocation import Allocation, MemoryNeed
from gateway.memory.ledger import Claim, Ledger, MemoryOrders


def _holder(ledger: Ledger, name: str, floor: int) -> Allocation:
    ledger.enter(Claim(name, floor, priority=3, since=7.0))
    allocation = ledger.allocation(name)
    assert allocation is not None
    return allocation


def test_a_floor_is_reserved_before_anything_is_held() -> None:
    ledger = Ledger(100)
    allocation = _holder(ledger, "a", 30)
    assert allocation == Allocation("a", 3, 7.0, floor_bytes=30, limit_bytes=30, obeyed_bytes=30)
    assert (allocation.pinned, allocation.turn_begins, allocation.short) == (False, True, False)
    assert (allocation.lent_bytes, allocation.idle_loan_bytes, allocation.rows_bytes) == (0, 0, 0)
    # A model that loads is as good as busy, and neither borrows nor goes.
    assert (allocation.busy, allocation.steady, allocation.evictable_for_any) == (
        True,
        False,
        False,
    )
    assert (ledger.committed_bytes, ledger.free_bytes, ledger.coming_bytes) == (30, 70, 0)
    assert list(ledger.allocations) == [allocation]
    assert (allocation.footprint_bytes, allocation.reload_s, allocation.last_used) == (0, 0.0, 0.0)
    assert allocation.need == MemoryNeed(used_bytes=0, wanted_bytes=0, least_bytes=0)
    assert ledger.steady == []
    assert ledger.remove("a") is allocation
    assert (ledger.remove("a"), ledger.allocation("a"), ledger.free_bytes) == (None, None, 100)


@pytest.mark.parametrize(
    ("limit", "answered", "footprint", "read_at", "committed", "coming"),
    [
        pytest.param(50, 30, 30, 30, 50, 0, id="it uses less"),
        pytest.param(30, 50, 30, 50, 50, 20, id="it has not answered"),
        pytest.param(30, 30, 50, 50, 50, 20, id="what it gave isn't read yet"),
        pytest.param(30, 30, 10, 50, 30, 0, id="there is nothing to be read"),
        pytest.param(30, 30, 50, 30, 50, 0, id="it gives no more"),
    ],
)
def test_committed_bytes_are_the_largest_of_limit_answer_and_footprint(
    limit: int, answered: int, footprint: int, read_at: int, committed: int, coming: int
) -> None:
    ledger = Ledger(100)
    allocation = _holder(ledger, "a", 20)
    allocation.limit_bytes, allocation.obeyed_bytes = limit, answered
    allocation.footprint_bytes, allocation.read_at_bytes = footprint, read_at
    assert (allocation.committed_bytes, ledger.committed_bytes) == (committed, committed)
    assert allocation.returning_bytes == allocation.coming_bytes == ledger.coming_bytes == coming
    assert allocation.freed_by_end_bytes == committed - coming, "its end would bring the rest"
    allocation.ending = True
    assert allocation.coming_bytes == ledger.coming_bytes == committed
    assert allocation.freed_by_end_bytes == 0


def test_of_a_loan_what_neither_runs_nor_comes_next_stands_idle() -> None:
    allocation = _holder(Ledger(100), "a", 20)
    allocation.limit_bytes = 70
    cases = {(0, 0): (50, 50), (45, 30): (25, 40), (30, 45): (25, 25), (90, 0): (0, 50)}
    cases |= {(0, 90): (0, 0), (71, 71): (0, 0)}
    for (used, least), (idle, rows) in cases.items():
        allocation.need = MemoryNeed(used, 99, least)
        assert (allocation.idle_loan_bytes, allocation.rows_bytes) == (idle, rows), (used, least)
    assert allocation.lent_bytes == 50


def test_loaded_model_may_borrow_and_be_evicted() -> None:
    ledger = Ledger(100)
    allocation = _holder(ledger, "a", 20)
    allocation.ready_at = 0.0
    assert (allocation.steady, allocation.evictable_for_any, ledger.steady) == (
        True,
        True,
        [allocation],
    )
    allocation.pinned = True
    assert (allocation.steady, allocation.evictable_for_any) == (True, False)
    allocation.pinned, allocation.ending = False, True
    assert (allocation.steady, allocation.evictable_for_any, ledger.steady) == (False, False, [])


def test_the_budget_less_what_nobody_can_give_back() -> None:
    ledger = Ledger(100)
    ledger.spare_bytes = 5
    first, second = _holder(ledger, "a", 20), _holder(ledger, "b", 30)
    assert (ledger.committed_bytes, ledger.free_bytes) == (55, 45)
    assert (ledger.usable_bytes, ledger.possible_bytes) == (100, 100)
    ledger.stranded_bytes = 60
    assert (ledger.usable_bytes, ledger.free_bytes) == (40, -15)
    first.pinned = second.pinned = True
    first.limit_bytes = 35
    assert ledger.possible_bytes == -10, "a loan can be called back from a pinned model too"
    assert (ledger.possible_for("a"), ledger.possible_for("b")) == (10, 20)
    assert ledger.floor_bytes(["a", "b", "unknown"]) == 50
    second.ending = True
    assert ledger.possible_bytes == 20
    assert (ledger.possible_for("a"), ledger.possible_for("b")) == (40, 20)
    assert ledger.floor_bytes(["a", "b"]) == 20
    ledger.stranded_bytes = 101
    assert ledger.usable_bytes == 0


def test_short_model_has_requests_that_wait_for_memory() -> None:
    allocation = _holder(Ledger(100), "a", 20)
    for held, wanted, short in ((1, 21, True), (1, 20, False), (0, 21, False)):
        allocation.need = MemoryNeed(20, wanted, 10, held)
        assert allocation.short is short


def test_model_of_an_earlier_gateway_has_its_allocation() -> None:
    ledger, earlier = Ledger(100), Ledger(100)
    allocation = _holder(earlier, "a", 20)
    ledger.adopt(allocation)
    assert (ledger.allocation("a"), ledger.free_bytes) == (allocation, 80)


def test_companions_are_used_together() -> None:
    """Also one that is loaded while another asks for memory."""
    ledger = Ledger(100)
    ledger.arrange(Groups([Group("g", ("a", "b", "c", "d"), together=True)]))
    ledger.share_companions({"d"})
    first = _holder(ledger, "a", 10)
    assert first.companions_busy
    others = [_holder(ledger, text, 10) for text in ("b", "c")]
    for other, last_used in zip(others, (5.0, 9.0), strict=True):
        other.busy, other.last_used = False, last_used
    ledger.share_companions(())
    assert (first.companions_busy, first.companions_used) == (False, 9.0)


def test_a_reserved_model_that_may_not_be_beside_it_leaves_its_room() -> None:
    ledger = Ledger(100)
    ledger.arrange(
        Groups([Group("turns", ("a", "b"), swap=True), Group("answered", ("b", "c"), reserve=True)])
    )
    for name, floor in (("b", 30), ("c", 20)):
        ledger.floors[name] = floor
        _holder(ledger, name, floor)
    assert ledger.possible_among({"a"}) == 50, "the floor of c, and the room that is answered for b"
    assert ledger.reserved_for(ledger.groups.all[1]) == 0
    ledger.remove("b")
    assert ledger.reserved_for(ledger.groups.all[1]) == 30


def test_bytes_lent_again_are_no_recall() -> None:
    ledger = Ledger(100)
    allocation = _holder(ledger, "a", 20)
    orders = MemoryOrders(ledger, 3.0)
    orders.lend(allocation, 50)
    allocation.obeyed_bytes = allocation.footprint_bytes = allocation.read_at_bytes = 50
    orders.recall(allocation, 30)
    assert (allocation.recalled_at, allocation.returning_bytes) == (3.0, 20)
    orders.lend(allocation, 40)
    assert (allocation.recalled_at, allocation.returning_bytes) == (3.0, 10)
    orders.lend(allocation, 50)
    assert (allocation.recalled_at, allocation.returning_bytes) == (None, 0)
