"""Where one decision turns into another: exactly enough, nothing asked, asked too often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.memory.admission import Admission, Shortage
from gateway.memory.allocation import MemoryNeed
from gateway.memory.ledger import NOISE_BYTES, Admit, Evict, LimitChange, Refuse
from gateway.system.memory_reading import Pressure

GB = 1_000_000_000


def _load(
    admission: Admission, name: str, size: int, *, busy: bool = False, last_used: float = 0.0
) -> None:
    admission.ask(name, size * GB, 0, 0.0)
    assert Admit(name, size * GB) in admission.decide(0.0)
    admission.ready(name, 0.0)
    admission.record_use(name, priority=0, busy=busy, last_used=last_used)


def test_model_with_memory_can_not_ask_for_more() -> None:
    admission = Admission(100 * GB, 10.0)
    _load(admission, "a", 60)
    with pytest.raises(ValueError, match="a holds memory already"):
        admission.ask("a", 60 * GB, 0, 1.0)
    assert list(admission.claims) == []
    admission.gone("a")
    admission.ask("a", 60 * GB, 0, 1.0)
    assert [claim.model_id for claim in admission.claims] == ["a"]


def test_ready_model_may_be_evicted_unless_pinned() -> None:
    admission = Admission(100 * GB, 10.0)
    _load(admission, "a", 60)
    allocation = admission.ledger.allocation("a")
    assert allocation is not None
    assert (allocation.ready_at, allocation.pinned, allocation.reload_s) == (0.0, False, 0.0)
    admission.pin("a", pinned=True)
    admission.ask("b", 50 * GB, 0, 1.0)
    assert admission.decide(1.0) == [Refuse("b", 50 * GB, 40 * GB)]
    admission.pin("a", pinned=False)
    admission.pin("nobody", pinned=True)
    admission.ask("b", 50 * GB, 0, 2.0)
    assert admission.decide(2.0) == [Evict("a", "b", busy=False)]


def test_claim_for_exactly_the_possible_bytes_waits() -> None:
    admission = Admission(100 * GB, 1000.0)
    _load(admission, "pinned", 40, busy=True)
    _load(admission, "busy", 30, busy=True)
    admission.pin("pinned", pinned=True)
    admission.ask("just", 60 * GB, 0, 1.0)
    admission.ask("over", 60 * GB + 1, 0, 1.0)
    assert admission.decide(1.0) == [Refuse("over", 60 * GB + 1, 60 * GB)]
    assert [claim.model_id for claim in admission.claims] == ["just"]


def test_no_spare_has_room_without_an_order() -> None:
    admission = Admission(100, 10.0)
    admission.decide(0.0)
    assert (admission.ledger.spare_bytes, admission.ledger.free_bytes) == (0, 100)


def test_the_spare_has_exactly_what_is_left_or_nothing() -> None:
    admission = Admission(100 * GB, 10.0, spare_bytes=5 * GB)
    _load(admission, "a", 95, busy=True)
    for now in (1.0, 2.0):
        admission.decide(now)
        assert admission.ledger.spare_bytes == 5 * GB, "nothing is left beside it"
    admission.reserve_spare(6 * GB)
    admission.decide(3.0)
    assert admission.ledger.spare_bytes == 5 * GB, "there is no room for more"
    admission.reserve_spare(4 * GB)
    admission.decide(4.0)
    assert admission.ledger.spare_bytes == 4 * GB
    admission.configure(100 * GB, 10.0, 5 * GB)
    admission.decide(5.0)
    assert admission.ledger.spare_bytes == 5 * GB
    admission.configure(100 * GB - 1, 10.0, 5 * GB)
    admission.decide(6.0)
    assert admission.ledger.spare_bytes == 0


def test_the_spare_waits_for_those_that_wait() -> None:
    admission = Admission(100 * GB, 1000.0)
    _load(admission, "a", 60, busy=True)
    admission.ask("b", 50 * GB, 0, 1.0)
    admission.reserve_spare(5 * GB)
    admission.decide(1.0)
    assert admission.ledger.spare_bytes == 0
    admission.withdraw("b")
    admission.decide(2.0)
    assert admission.ledger.spare_bytes == 5 * GB


def test_shortage_evicts_the_idle_model_with_least_worth_and_no_busy_one() -> None:
    admission = Admission(100 * GB, 10.0)
    _load(admission, "busy", 10, busy=True, last_used=1.0)
    _load(admission, "new", 10, last_used=3.0)
    _load(admission, "old", 10, last_used=2.0)
    _load(admission, "pinned", 10, last_used=0.5)
    admission.pin("pinned", pinned=True)
    assert admission.relieve(4.0, all_idle=False) == [Evict("old", None, busy=False)]
    assert admission.relieve(5.0, all_idle=True) == [Evict("new", None, busy=False)]
    assert admission.relieve(6.0, all_idle=True) == []


def test_a_shortage_takes_idle_loans_first_and_leaves_what_runs() -> None:
    admission = Admission(100 * GB, 10.0)
    _load(admission, "lender", 10, busy=True)
    _load(admission, "idle", 10)
    admission.record_need("lender", MemoryNeed(40 * GB, 40 * GB, 10 * GB), 10 * GB)
    admission.decide(1.0)
    noise_bytes = NOISE_BYTES
    admission.record_need("lender", MemoryNeed(40 * GB - noise_bytes, 40 * GB, 10 * GB), 40 * GB)
    assert admission.relieve(2.0, all_idle=False) == [Evict("idle", None, busy=False)]
    admission.gone("idle")
    _load(admission, "idle", 10)
    admission.record_need("lender", MemoryNeed(30 * GB, 40 * GB, 10 * GB), 40 * GB)
    assert admission.relieve(3.0, all_idle=False) == [LimitChange("lender", 30 * GB, recall=True)]
    allocation = admission.ledger.allocation("lender")
    assert allocation is not None
    assert (allocation.limit_bytes, allocation.recalled_at) == (30 * GB, 3.0)


def test_ending_model_borrows_nothing_and_ends_once() -> None:
    admission = Admission(100 * GB, 10.0)
    _load(admission, "a", 60)
    admission.ending("a")
    admission.ending("nobody")
    admission.ask("b", 50 * GB, 0, 1.0)
    assert admission.decide(1.0) == [], "what it waits for is coming"
    admission.gone("a")
    assert admission.decide(2.0) == [Admit("b", 50 * GB)]


def test_claims_are_served_by_priority_then_by_age() -> None:
    admission = Admission(100 * GB, 10.0)
    for name, priority, since in (("late", 0, 2.0), ("early", 0, 1.0), ("dear", 1, 3.0)):
        admission.ask(name, 50 * GB, priority, since)
    assert admission.decide(3.0) == [Admit("dear", 50 * GB), Admit("early", 50 * GB)]
    admission.gone("dear")
    admission.record_use("late", priority=2, busy=True, last_used=0.0)
    admission.ask("dear", 50 * GB, 1, 4.0)
    assert admission.decide(4.0) == [Admit("late", 50 * GB)]


def test_a_moment_of_it_is_none() -> None:
    shortage = Shortage()
    levels: list[Pressure | None] = ["warn", "critical", None, "warn", "normal"]
    assert [shortage.lasting(level, 4.9 * index) for index, level in enumerate(levels)] == [
        None
    ] * 5


def test_critical_counts_as_warn_until_it_has_lasted_itself() -> None:
    shortage = Shortage()
    found = [
        shortage.lasting(level, now)
        for level, now in (("warn", 0.0), ("critical", 4.0), ("critical", 5.0), ("critical", 9.0))
    ]
    assert found == [None, None, "warn", "critical"]
    assert shortage.lasting("warn", 9.5) == "warn"
    assert shortage.lasting("critical", 10.0) == "warn"
    assert shortage.lasting("normal", 10.5) is None
    assert shortage.lasting("critical", 11.0) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["normal", "warn", "critical", None]), st.floats(0, 8)),
        min_size=1,
    )
)
def test_pressure_counts_only_if_it_lasts(readings: list[tuple[Pressure | None, float]]) -> None:
    order: list[Pressure | None] = [None, "normal", "warn", "critical"]
    shortage, now = Shortage(), 0.0
    past: list[tuple[float, Pressure | None]] = []
    for level, passed_s in readings:
        now += passed_s
        past.append((now, level))
        counts = shortage.lasting(level, now)
        # All readings since the last one that is old enough.
        begun = max(
            (index for index, (read_at, _) in enumerate(past) if now - read_at >= 5.0), default=None
        )
        least = 0 if begun is None else min(order.index(item) for _, item in past[begun:])
        assert counts == (order[least] if least >= order.index("warn") else None)
