"""What one round of decisions leaves for the next."""

from __future__ import annotations

from gateway.memory.admission_round import OVERGROWN_S
from gateway.memory.ledger import Evict, Replace
from tests.gateway.memory.account import LATER, PATIENCE_S, UNIT, Account, lends, recalls


def _replaced(account: Account, now: float) -> list[str]:
    return [replace.model_id for replace in account.decide(now) if isinstance(replace, Replace)]


def _evicted(account: Account, now: float) -> list[str]:
    return [evict.model_id for evict in account.decide(now) if isinstance(evict, Evict)]


def test_worker_is_not_replaced_for_bytes_that_others_can_spare() -> None:
    account = Account()
    account.load("a", 20, busy=True)
    account.load("b", 30, busy=True, pinned=True)
    account.load("c", 40, busy=True, pinned=True)
    account.footprint("a", 31)
    account.decide(LATER)
    account.configure(120 * UNIT, PATIENCE_S, 0)
    account.need("b", 30, 39)
    account.obey(account.decide(LATER + 1))
    account.need("b", 30)
    account.configure(101 * UNIT, PATIENCE_S, 0)
    account.footprint("a", 40)
    account.decide(LATER + 2)
    assert account.limit("b") < 39
    assert _replaced(account, LATER + 3) == []


def test_worker_is_not_replaced_for_bytes_that_others_can_spare_in_the_end() -> None:
    account = Account()
    account.load("a", 20, busy=True)
    account.load("b", 30, busy=True, used=39, least=39, at=LATER, reload_s=1000.0)
    account.load("c", 40, busy=True, pinned=True)
    account.footprint("a", 25)
    assert account.decide(LATER) == []
    account.need("b", 30)
    assert account.decide(LATER + OVERGROWN_S) == [recalls("b", 35)]


def test_worker_that_grows_again_has_its_full_time() -> None:
    account = Account()
    account.load("a", 50, busy=True, at=LATER, reload_s=1000.0)
    account.load("b", 50, busy=True)
    account.footprint("a", 60)
    assert account.decide(LATER) == []
    account.configure(110 * UNIT, PATIENCE_S, 0)
    assert account.decide(LATER + 5) == [lends("a", 60)]
    account.obey([lends("a", 60)])
    account.need("a", 60, least=60)
    account.footprint("a", 70)
    assert account.decide(LATER + 6) == []
    assert _replaced(account, LATER + 6 + OVERGROWN_S - 0.1) == []
    assert _replaced(account, LATER + 6 + OVERGROWN_S) == ["a"]


def test_the_spare_stays_where_it_is_in_nobodys_way() -> None:
    account = Account(spare=5)
    account.decide(LATER)
    account.claim("a", 95)
    account.decide(LATER)
    assert account.ledger.allocation("a") is not None
    assert account.ledger.spare_bytes == 5 * UNIT
    account.gone("a")
    account.claim("b", 96)
    account.decide(LATER)
    assert account.ledger.allocation("b") is not None
    assert account.ledger.spare_bytes == 0


def test_of_two_that_wait_for_each_others_places_one_keeps_its_own() -> None:
    account = Account()
    for name in ("a", "b"):
        account.load(name, 45, busy=True, at=LATER, reload_s=1000.0)
    account.need("a", 45, least=60)
    account.decide(LATER + 1)
    account.need("b", 45, least=60)
    account.decide(LATER + 2)
    now = LATER + 2 + PATIENCE_S
    assert _evicted(account, now) == []
    first, second = account.ledger.allocation("a"), account.ledger.allocation("b")
    assert first is not None
    assert second is not None
    assert first.protected_at == now
    assert second.protected_at < now


def test_unneeded_coming_bytes_serve_the_next_claim() -> None:
    account = Account()
    account.load("idle", 30, last_used=1.0)
    account.load("other", 35, last_used=2.0)
    account.claim("large", 55)
    assert _evicted(account, LATER) == ["idle"]
    account.claim("small", 10, now=LATER + 1)
    assert _evicted(account, LATER + 1) == [], "35 are free and 30 come, of which it needs 20"
    account.claim("third", 1, now=LATER + 2)
    assert _evicted(account, LATER + 2) == ["other"]


def test_starvation_counts_anew_after_a_grant() -> None:
    account = Account()
    account.load("a", 20, busy=True)
    account.load("b", 60, busy=True)
    account.need("a", 20, least=30)
    account.obey(account.decide(LATER))
    assert account.limit("a") == 30
    account.need("a", 30, least=60)
    account.decide(LATER + 5)
    allocation = account.ledger.allocation("a")
    assert allocation is not None
    assert allocation.starved_since == LATER + 5


def test_bytes_that_come_for_others_are_not_its_own() -> None:
    """Those of a model that ends, and those that it gives back itself, are for the new one."""
    account = Account()
    account.load("old", 40)
    account.load("dry", 40, busy=True, used=60)
    account.claim("new", 60)
    assert account.decide(LATER) == [Evict("old", "new", busy=False), recalls("dry", 40)]
    account.need("dry", 60, 60, 60)
    assert account.decide(LATER) == []


def test_bytes_that_a_model_regains_come_for_no_other() -> None:
    account = Account()
    account.load("idle", 10, busy=True)
    account.load("dry", 40, busy=True, used=60)
    account.load("other", 30, busy=True)
    account.claim("new", 20, priority=1)
    assert account.decide(LATER) == [recalls("dry", 40)]
    account.withdraw("new")
    account.record_use("idle", priority=0, busy=False, last_used=0.0)
    account.need("dry", 60, 60, 60)
    account.need("other", 30, 40, 40)
    assert account.decide(LATER) == [lends("dry", 60), Evict("idle", "other", busy=False)]


def test_worker_that_grows_after_a_recall_holds_nothing_for_ever() -> None:
    account = Account()
    account.load("a", 10, busy=True, used=40)
    account.claim("b", 70)
    account.obey(account.decide(LATER))
    account.footprint("a", 30)
    account.decide(LATER)
    account.ready("b", LATER)
    account.footprint("b", 60)
    account.withdraw("b")
    account.footprint("a", 35)
    account.decide(LATER + 1)
    allocation = account.ledger.allocation("a")
    assert allocation is not None
    assert (allocation.floor_bytes, allocation.stuck_bytes) == (10 * UNIT, 0)
