"""A check gets memory that no model waits for, and gives it back when one does."""

from __future__ import annotations

from gateway.memory import explain
from gateway.memory.check_room import CheckRoom
from gateway.memory.ledger import Admit
from gateway.memory.loans import IDLE_LOAN_S
from tests.gateway.memory.account import LATER, PATIENCE_S, UNIT, Account, recalls


def want(account: Account, least: int, wanted: int | None = None) -> CheckRoom:
    room = CheckRoom("m", least * UNIT, (wanted or least) * UNIT)
    account.want_check(room)
    return room


def test_a_check_leaves_half_of_what_it_could_do_without() -> None:
    account = Account()
    account.load("a", 20)
    room = want(account, 40, 100)
    assert account.decide(LATER) == []
    assert (room.granted_bytes, account.free) == (60 * UNIT, 20)
    account.want_check(None)
    assert account.free == 80


def test_a_check_waits_while_a_model_waits() -> None:
    account = Account()
    account.load("busy", 80, busy=True)
    account.claim("waits", 30)
    room = want(account, 10)
    account.decide(LATER)
    assert room.granted_bytes == 0
    account.withdraw("waits")
    account.decide(LATER)
    assert room.granted_bytes == 10 * UNIT


def test_no_model_is_evicted_for_a_check() -> None:
    account = Account()
    account.load("idle", 80)
    room = want(account, 30)
    assert account.decide(LATER + PATIENCE_S) == []
    assert room.granted_bytes == 0
    sentence = explain.no_room_for_check(account.ledger, room).message
    assert "'m'" in sentence
    assert "no model is unloaded" in sentence
    account.want_check(CheckRoom("m", 200 * UNIT, 200 * UNIT))
    assert account.ledger.check is not None
    assert (
        "raise memory.budget"
        in explain.no_room_for_check(account.ledger, account.ledger.check).message
    )


def test_an_idle_loan_is_called_back_for_a_check() -> None:
    account = Account()
    account.load("idle", 20, used=90)
    account.need("idle", 0)
    room = want(account, 30)
    decisions = account.decide(LATER + IDLE_LOAN_S)
    assert decisions == [recalls("idle", 70)]
    account.obey(decisions)
    account.footprint("idle", 20)
    account.decide(LATER + IDLE_LOAN_S)
    assert room.granted_bytes == 30 * UNIT


def test_a_load_ends_a_check_before_an_idle_model() -> None:
    account = Account()
    account.load("idle", 40)
    room = want(account, 50)
    account.decide(LATER)
    account.claim("new", 30)
    assert account.decide(LATER) == []
    assert room.ends
    assert account.decide(LATER) == [], "its process still has the memory"
    account.want_check(None)
    assert account.decide(LATER) == [Admit("new", 30 * UNIT)]


def test_a_load_that_fits_beside_a_check_lets_it_be() -> None:
    account = Account()
    room = want(account, 50)
    account.decide(LATER)
    account.claim("new", 50)
    assert account.decide(LATER) == [Admit("new", 50 * UNIT)]
    assert not room.ends


def test_requests_that_wait_in_a_loaded_model_end_a_check() -> None:
    account = Account()
    account.load("a", 20, busy=True, used=20)
    room = want(account, 70)
    account.decide(LATER)
    account.need("a", 20, 25, held=1)
    account.decide(LATER)
    assert not room.ends, "there was enough for both"
    account.need("a", 25, 60, held=1)
    account.decide(LATER)
    assert room.ends


def test_a_machine_short_of_memory_ends_a_check_first() -> None:
    account = Account()
    account.load("idle", 20)
    room = want(account, 30)
    account.decide(LATER)
    assert account.relieve(LATER, all_idle=False) == []
    assert room.ends
    assert account.relieve(LATER, all_idle=False) != [], "next time it is the model's turn"


def test_a_smaller_budget_ends_a_check_before_a_model() -> None:
    account = Account()
    account.load("idle", 40)
    room = want(account, 50)
    account.decide(LATER)
    account.configure(60 * UNIT, PATIENCE_S, 0)
    assert account.decide(LATER) == []
    assert room.ends


def test_reason_of_a_waiting_model_names_the_check() -> None:
    account = Account()
    want(account, 60)
    account.decide(LATER)
    account.claim("new", 50)
    account.decide(LATER)
    (claim,) = account.claims
    assert "the check of m" in explain.waiting(account.ledger, claim)
