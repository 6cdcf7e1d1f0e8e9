"""What goes for requests that merely want more, and when."""

from __future__ import annotations

import pytest

from gateway.memory.ledger import Decision, Evict
from tests.gateway.memory.account import LATER, PATIENCE_S, UNIT, Account, lends

SLICE_S = PATIENCE_S / 4


def _wanting(
    *, floor: int = 30, priority: int = 0, spare: int = 0, last_used: float = LATER, **idle: float
) -> Account:
    """ "busy" has 60 of 100, "idle" the rest; from `LATER` on four requests want 50 more."""
    account = Account(spare=spare)
    account.decide(0.0)
    account.load("busy", 20, busy=True, used=70 - spare)
    account.load("idle", floor, priority=priority, last_used=last_used, **idle)  # type: ignore[arg-type]
    account.need("busy", 70 - spare, 120 - spare, 20, held=4)
    assert account.decide(LATER) == []
    return account


def _gone(decided: list[Decision]) -> list[str]:
    return [evict.model_id for evict in decided if isinstance(evict, Evict)]


def test_an_idle_model_goes_after_a_slice() -> None:
    account = _wanting()
    assert account.decide(LATER + SLICE_S - 0.1) == []
    assert account.decide(LATER + SLICE_S) == [Evict("idle", "busy", busy=False)]
    assert account.decide(LATER + SLICE_S) == []
    account.gone("idle")
    assert account.decide(LATER + SLICE_S) == [lends("busy", 100)]


def test_and_after_as_long_as_its_load_took() -> None:
    account = _wanting(reload_s=40.0)
    assert account.decide(LATER + 39.9) == []
    assert _gone(account.decide(LATER + 40)) == ["idle"]


def test_recently_used_model_is_not_evicted() -> None:
    account = _wanting()
    account.record_use("idle", priority=0, busy=False, last_used=LATER + 1)
    assert account.decide(LATER + SLICE_S) == []
    assert _gone(account.decide(LATER + 1 + SLICE_S)) == ["idle"]


def test_model_that_was_just_loaded_stays() -> None:
    account = _wanting(last_used=0.0)
    account.ready("idle", LATER + 1)
    assert account.decide(LATER + SLICE_S) == []
    assert _gone(account.decide(LATER + 1 + SLICE_S)) == ["idle"]


@pytest.mark.parametrize(
    "settings", [{"priority": 1}, {"pinned": True}, {"busy": True}], ids=lambda item: str(item)
)
def test_protected_models_stay(settings: dict[str, int]) -> None:
    account = _wanting(**settings)
    assert account.decide(LATER + 100) == []


def test_they_must_have_waited_without_a_break() -> None:
    account = _wanting()
    account.need("busy", 70, 70, 20)
    account.decide(LATER + 1)
    account.need("busy", 70, 120, 20, held=1)
    account.decide(LATER + 2)
    assert account.decide(LATER + 2 + SLICE_S - 0.1) == []
    assert _gone(account.decide(LATER + 2 + SLICE_S)) == ["idle"]


def test_rows_that_grow_are_nobody_who_waits() -> None:
    account = _wanting()
    account.need("busy", 70, 120, 20)
    assert account.decide(LATER + 100) == []
    account.need("busy", 70, 70, 20, held=1)
    assert account.decide(LATER + 200) == [], "it has all that it wants"


def test_model_under_recall_asks_for_nothing() -> None:
    account = _wanting()
    account.record_use("busy", priority=0, busy=True, last_used=LATER)
    account.claim("new", 10)
    account.record_use("idle", priority=0, busy=True, last_used=LATER)
    account.decide(LATER)
    account.record_use("idle", priority=0, busy=False, last_used=0.0)
    allocation = account.ledger.allocation("busy")
    assert allocation is not None
    assert allocation.recalled_at == LATER
    assert _gone(account.decide(LATER + SLICE_S)) == []


def test_only_needed_models_go_least_worth_first() -> None:
    account = Account()
    account.load("busy", 10, busy=True, used=40)
    for name, last_used in (("old", 1.0), ("new", 2.0), ("mid", 1.5)):
        account.load(name, 20, last_used=last_used)
    account.need("busy", 40, 70, 10, held=2)
    account.decide(LATER)
    assert _gone(account.decide(LATER + SLICE_S)) == ["old", "mid"]


def test_coming_bytes_count() -> None:
    account = Account()
    account.load("busy", 10, busy=True, used=40)
    account.load("ends", 20)
    account.load("idle", 40, last_used=1.0)
    account.ending("ends")
    account.need("busy", 40, 60, 10, held=2)
    account.decide(LATER)
    assert _gone(account.decide(LATER + SLICE_S)) == []
    account.need("busy", 40, 61, 10, held=2)
    assert _gone(account.decide(LATER + SLICE_S)) == ["idle"]


def test_of_several_that_want_each_is_served_once() -> None:
    account = Account()
    for name in ("a", "b"):
        account.load(name, 10, busy=True, used=20)
    for name, last_used in (("old", 1.0), ("new", 2.0)):
        account.load(name, 30, last_used=last_used)
    for name in ("a", "b"):
        account.need(name, 20, 35, 10, held=1)
    account.decide(LATER)
    assert account.decide(LATER + SLICE_S) == [Evict("old", "a", busy=False)]
    for name in ("a", "b"):
        account.need(name, 20, 36, 10, held=1)
    assert account.decide(LATER + SLICE_S) == [Evict("new", "b", busy=False)]


def test_surplus_of_an_eviction_serves_the_next_model() -> None:
    account = Account()
    for name in ("a", "b"):
        account.load(name, 10, busy=True, used=20)
    for name, last_used in (("old", 1.0), ("new", 2.0)):
        account.load(name, 30, last_used=last_used)
    for name in ("a", "b"):
        account.need(name, 20, 45, 10, held=1)
    account.decide(LATER)
    assert account.decide(LATER + SLICE_S) == [
        Evict("old", "a", busy=False),
        Evict("new", "b", busy=False),
    ]


def test_the_higher_priority_is_served_first() -> None:
    account = Account()
    account.load("low", 30, busy=True)
    account.load("high", 30, priority=1, busy=True)
    account.load("idle", 40)
    account.need("low", 30, 50, held=1)
    account.decide(LATER - 1)
    account.need("high", 30, 50, held=1)
    account.decide(LATER)
    assert account.decide(LATER + SLICE_S) == [Evict("idle", "high", busy=False)]


def test_nothing_goes_where_what_comes_is_just_enough() -> None:
    account = Account(spare=5)
    account.decide(0.0)
    account.load("busy", 10, busy=True, used=55)
    account.load("ends", 20)
    account.load("idle", 20)
    account.ending("ends")
    account.need("busy", 55, 75, 10, held=1)
    account.decide(LATER)
    assert account.decide(LATER + SLICE_S) == []
    assert account.ledger.spare_bytes == 5 * UNIT


def test_the_spare_goes_first_and_stays_away_while_they_wait() -> None:
    account = _wanting(spare=5)
    assert account.ledger.spare_bytes == 5 * UNIT
    account.need("busy", 65, 70, 20, held=1)
    assert account.decide(LATER + SLICE_S - 0.1) == []
    assert account.ledger.spare_bytes == 5 * UNIT
    assert account.decide(LATER + SLICE_S) == [lends("busy", 70)]
    assert account.ledger.spare_bytes == 0
    account.need("busy", 70, 80, 20, held=1)
    assert account.decide(LATER + SLICE_S) == [Evict("idle", "busy", busy=False)]
    account.gone("idle")
    account.need("busy", 65, 65, 20)
    account.decide(LATER + SLICE_S)
    assert account.ledger.spare_bytes == 5 * UNIT


def test_no_idle_model_goes_while_claims_would_get_the_room() -> None:
    """A model that was just loaded keeps its place, and without it the load doesn't fit."""
    account = Account()
    account.load("placed", 30, busy=True, at=LATER, reload_s=1000.0)
    account.load("idle", 20, last_used=0.0)
    account.load("busy", 20, busy=True, used=50)
    account.need("busy", 50, 60, 50, held=1)
    assert account.decide(LATER) == []
    account.claim("new", 90, now=LATER)
    later = LATER + 2 * PATIENCE_S
    assert account.decide(later) == []
    account.withdraw("new")
    assert _gone(account.decide(later)) == ["idle"], "it has waited all the while"
