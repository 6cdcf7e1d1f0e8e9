"""What is lent to sequences and what to prompt caches, and how much of it is called back."""

from __future__ import annotations

from gateway.memory.loans import QUIET_S, REBALANCE_S
from tests.gateway.memory.account import LATER, Account, lends, recalls


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
    account.note("a", priority=0, busy=False, last_used=LATER)
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


def test_who_outgrew_what_it_was_lent_has_it_back_after_a_while() -> None:
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


def test_what_it_cannot_have_meanwhile_is_called_back_from_nobody() -> None:
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


def test_who_falls_idle_keeps_nothing_that_others_could_use() -> None:
    """However near to its share the other is already."""
    account = Account(budget=90)
    account.load("a", 10, busy=True, used=70)
    account.load("b", 10, busy=True, used=20)
    account.need("a", 70, 90, 10)
    account.need("b", 0)
    assert account.decide(LATER) == [], "it has more than three quarters, and rows come and go"
    account.note("b", priority=0, busy=False, last_used=LATER)
    assert account.decide(LATER + QUIET_S - 0.1) == [], "the next request may be on its way"
    assert account.decide(LATER + QUIET_S) == [recalls("b", 10)]
    account.obey([recalls("b", 10)])
    account.footprint("b", 10)
    assert account.decide(LATER + QUIET_S) == [lends("a", 80)]


def test_where_one_that_stands_idle_has_enough_the_other_keeps_its_own() -> None:
    account = Account(budget=110)
    for name in ("a", "b"):
        account.load(name, 10, busy=True, used=50)
        account.note(name, priority=0, busy=False, last_used=LATER - QUIET_S)
        account.need(name, 0)
    account.load("busy", 10, busy=True)
    account.need("busy", 10, 40)
    assert len(account.decide(LATER)) == 1
