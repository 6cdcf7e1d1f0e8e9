"""What is lent to sequences and what to prompt caches, and how much of it is called back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.memory.loans import IDLE_LOAN_S, QUIET_S, REBALANCE_S, Borrower, shares
from tests.gateway.memory.account import LATER, PATIENCE_S, UNIT, Account, lends, recalls


def test_prompt_caches_share_what_sequences_leave() -> None:
    account = Account()
    for name in ("a", "b"):
        account.load(name, 10, busy=True)
    account.need("a", 10, 40, cache_wanted=50)
    account.need("b", 10, 20, cache_wanted=50)
    assert account.decide(LATER) == [lends("a", 60), lends("b", 40)]


def test_an_idle_ones_cache_gets_no_larger() -> None:
    account = Account()
    account.load("a", 10, busy=True, used=30)
    account.record_use("a", priority=0, busy=False, last_used=LATER)
    account.need("a", 0, cache=15, cache_wanted=50)
    assert account.decide(LATER) == []
    account.load("b", 20, busy=True)
    account.need("b", 20, 100)
    account.obey(account.decide(LATER))
    assert (account.limit("a"), account.limit("b")) == (10, 70), "sequences come first"


def test_no_more_is_called_back_than_is_missing() -> None:
    """Of a fair share of 30, "little" has 5 and "nearly" 25, which is near enough."""
    account = Account(budget=160)
    lent = {"a": 45, "b": 45, "nearly": 25, "little": 5}
    for name, size in lent.items():
        account.load(name, 10, busy=True, used=10 + size)
    for name, size in lent.items():
        account.need(name, 10 + size, 160, 10)
    assert account.decide(LATER) == [recalls("a", 40), recalls("b", 45)]


def test_model_that_outgrew_a_loan_borrows_again_after_a_while() -> None:
    """Its row would be taken in and put out again as fast as decisions are made."""
    account = Account(budget=60)
    account.load("a", 10, busy=True, used=20)
    account.load("b", 30, busy=True)
    account.need("a", 20, 60)
    account.obey(account.decide(LATER))
    assert account.limit("a") == 30
    account.footprint("a", 36)
    assert account.decide(LATER) == [recalls("a", 24)]
    account.obey([recalls("a", 24)])
    account.footprint("a", 20)
    for now in (LATER, LATER + REBALANCE_S - 0.1):
        assert account.decide(now) == []
    assert account.decide(LATER + REBALANCE_S) == [lends("a", 30)]


def test_loan_that_must_wait_causes_no_recall() -> None:
    account = Account(budget=60)
    account.load("lender", 10, busy=True, used=50)
    account.load("a", 10, busy=True)
    account.footprint("a", 15)
    account.obey(account.decide(LATER))
    assert account.limit("lender") == 45
    account.footprint("lender", 45)
    account.footprint("a", 10)
    account.need("a", 10, 30)
    assert account.decide(LATER + 1) == []
    assert account.decide(LATER + REBALANCE_S) == [lends("a", 15), recalls("lender", 30)]


def test_idle_model_gives_its_loan_to_others() -> None:
    """However near to its share the other is already."""
    account = Account(budget=90)
    account.load("a", 10, busy=True, used=70)
    account.load("b", 10, busy=True, used=20)
    account.need("a", 70, 90, 10)
    account.need("b", 0)
    assert account.decide(LATER) == [], "it has more than three quarters, and rows come and go"
    account.record_use("b", priority=0, busy=False, last_used=LATER)
    assert account.decide(LATER + QUIET_S - 0.1) == [], "the next request may be on its way"
    assert account.decide(LATER + QUIET_S) == [recalls("b", 10)]
    account.obey([recalls("b", 10)])
    account.footprint("b", 10)
    assert account.decide(LATER + QUIET_S) == [lends("a", 80)]


def test_recall_from_an_idle_model_spares_a_busy_one() -> None:
    account = Account(budget=110)
    for name in ("a", "b"):
        account.load(name, 10, busy=True, used=50)
        account.record_use(name, priority=0, busy=False, last_used=LATER - QUIET_S)
        account.need(name, 0)
    account.load("busy", 10, busy=True)
    account.need("busy", 10, 40)
    assert len(account.decide(LATER)) == 1


def test_nothing_is_called_back_that_those_who_wait_would_have() -> None:
    """Who is short would stay so, and the lender would be stripped step by step."""
    account = Account()
    account.load("placed", 50, busy=True, at=LATER, reload_s=1000.0)
    account.load("lender", 10, busy=True, used=30)
    account.record_use("lender", priority=0, busy=False, last_used=LATER - QUIET_S)
    account.need("lender", 0, cache=20, cache_wanted=20)
    account.load("short", 10, busy=True, used=20)
    account.need("short", 20, 25)
    account.claim("new", 60, now=LATER - PATIENCE_S)
    assert account.decide(LATER) == []
    account.withdraw("new")
    account.need("short", 20, 25)
    assert account.decide(LATER) == [recalls("lender", 25)]


def test_recall_for_a_waiting_model_stops_at_its_coming_bytes() -> None:
    """And the others may share what is beside that."""
    account = Account()
    account.load("lender", 10, busy=True, used=60)
    account.record_use("lender", priority=0, busy=False, last_used=LATER - QUIET_S)
    account.need("lender", 0, cache=50, cache_wanted=50)
    account.load("short", 10, busy=True, used=40)
    account.need("short", 40, 45)
    account.claim("new", 20)
    assert account.decide(LATER) == [recalls("lender", 35)]


def test_returning_bytes_make_no_share_smaller() -> None:
    """Each recall would bring about a smaller one, down to single bytes."""
    account = Account(budget=129)
    account.load("large", 10, busy=True, used=70)
    account.load("a", 10, busy=True, used=49)
    account.load("dry", 10, busy=True)
    account.need("large", 70, 200, 70)
    account.need("a", 10, 200, 10)
    account.need("dry", 10, 200, 10)
    assert account.decide(LATER) == [recalls("a", 43)]
    account.obey([recalls("a", 43)])
    assert account.decide(LATER) == [], "its footprint doesn't show it yet"
    account.footprint("a", 43)
    assert account.decide(LATER) == [lends("dry", 16)]


def test_no_step_is_smaller_than_noise() -> None:
    """A third of a unit is beyond the share of "a", and is no news."""
    account = Account(budget=122)
    account.load("large", 10, busy=True, used=71)
    account.load("a", 10, busy=True, used=41)
    account.load("dry", 10, busy=True)
    account.need("large", 71, 200, 71)
    account.need("a", 10, 200, 10)
    account.need("dry", 10, 200, 10)
    assert account.decide(LATER) == []


BORROWERS = st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 50)), min_size=1, max_size=6).map(
    lambda rows: [Borrower(str(i), *row) for i, row in enumerate(rows)]
)


@given(pool=st.integers(-20, 200), borrowers=BORROWERS)
def test_any_pool_is_shared_as_it_should_be(pool: int, borrowers: list[Borrower]) -> None:
    lent = shares(pool, borrowers)
    assert set(lent) == {borrower.model_id for borrower in borrowers}
    assert sum(lent.values()) <= max(0, pool)
    for borrower in borrowers:
        assert 0 <= lent[borrower.model_id] <= borrower.wanted_bytes
    short = [borrower for borrower in borrowers if lent[borrower.model_id] < borrower.wanted_bytes]
    # What can't be divided among so many may stay.
    left = max(0, pool) - sum(lent.values())
    assert left == 0 or not short
    for borrower in short:
        for other in borrowers:
            if other.priority < borrower.priority:
                assert lent[other.model_id] == 0, "a lower priority has what a higher one wants"
            if other.priority == borrower.priority:
                assert lent[other.model_id] <= lent[borrower.model_id] + 1, "an equal has more"


def test_small_wants_are_met_and_the_rest_is_divided() -> None:
    borrowers = [Borrower("a", 0, 60), Borrower("b", 0, 10), Borrower("c", 0, 60)]
    assert shares(70, borrowers) == {"b": 10, "a": 30, "c": 30}
    assert shares(71, borrowers) == {"b": 10, "a": 30, "c": 31}
    above = [*borrowers, Borrower("first", 1, 50), Borrower("last", -1, 5)]
    assert shares(70, above) == {"first": 50, "b": 6, "a": 7, "c": 7, "last": 0}
    assert shares(-5, above) == dict.fromkeys(("first", "b", "a", "c", "last"), 0)


def test_recalled_bytes_that_a_model_regains_come_for_no_other() -> None:
    account = Account(budget=90)
    account.load("a", 10, busy=True, used=40, last_used=1.0)
    account.load("c", 10, busy=True, used=40)
    account.load("b", 10, busy=True)
    account.claim("new", 10, priority=1)
    assert account.decide(LATER) == [recalls("a", 30)]
    account.withdraw("new")
    account.record_use("c", priority=0, busy=False, last_used=0.0)
    account.need("a", 40)
    account.need("b", 10, 30)
    account.need("c", 0)
    assert account.decide(LATER) == [lends("a", 40), recalls("c", 20)]


def test_bytes_of_an_end_are_not_recalled_as_well() -> None:
    account = Account(budget=90)
    account.load("old", 30)
    account.load("c", 10, busy=True, used=40)
    account.load("a", 10, busy=True)
    account.record_use("c", priority=0, busy=False, last_used=0.0)
    account.need("c", 0)
    account.ending("old")
    account.need("a", 10, 30)
    account.obey(account.decide(LATER))
    assert account.limit("c") == 40


def test_no_more_is_called_back_for_a_spare_than_it_takes() -> None:
    account = Account()
    for name in ("a", "b"):
        account.load(name, 20, used=50)
        account.need(name, 0)
    account.configure(100 * UNIT, PATIENCE_S, 5 * UNIT)
    assert account.decide(LATER + IDLE_LOAN_S) == [recalls("a", 45)]
