"""What is lent to sequences and what to prompt caches, and how much of it is called back."""

from __future__ import annotations

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
