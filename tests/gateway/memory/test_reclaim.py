"""Whose memory is left alone until a prompt is computed, and until when."""

from __future__ import annotations

import pytest

from gateway.memory.allocation import Allocation
from gateway.memory.ledger import Decision, Evict
from gateway.memory.reclaim import enough_to_evict
from tests.gateway.memory.account import LATER, PATIENCE_S, Account, recalls
from tests.gateway.memory.world import UNIT, Row, World

# Longer than any other time that a place is kept.
PROMPT_S = 30.0


def _computing(*, prompt: int = 1) -> Account:
    """Of 100 "a" has 70 and computes a prompt; "b" has 30 and waits for 60; both since
    `LATER`.
    """
    account = Account()
    account.load("b", 30, busy=True)
    account.load("a", 20, busy=True, used=70, least=70)
    account.need("a", 70, 70, 70, prompt=prompt)
    account.obey(account.decide(LATER))
    account.need("b", 0, 60, 60)
    assert account.decide(LATER) == []
    return account


def _turn(account: Account, now: float) -> list[Decision]:
    decided = account.decide(now)
    account.obey(decided)
    return decided


def test_a_prompt_that_began_before_is_finished_and_has_its_worth() -> None:
    account = _computing()
    for seconds in (PATIENCE_S, PROMPT_S):
        assert _turn(account, LATER + seconds) == []
    account.need("a", 70, 70, 70)
    assert _turn(account, LATER + PROMPT_S) == []
    assert _turn(account, LATER + 2 * PROMPT_S - 0.1) == [], "as long as the prompt took"
    assert _turn(account, LATER + 2 * PROMPT_S) == [recalls("a", 40)]


def test_a_short_prompt_is_worth_a_slice() -> None:
    account = _computing(prompt=0)
    account.need("a", 70, 70, 70, prompt=1)
    assert _turn(account, LATER + PATIENCE_S - 2) == []
    account.need("a", 70, 70, 70)
    assert _turn(account, LATER + PATIENCE_S - 1) == []
    assert _turn(account, LATER + PATIENCE_S + 1.4) == []
    assert _turn(account, LATER + PATIENCE_S + 1.5) == [recalls("a", 40)]


def test_it_has_an_end() -> None:
    account = _computing()
    assert _turn(account, LATER + 10 * PATIENCE_S - 0.1) == []
    assert _turn(account, LATER + 10 * PATIENCE_S) == [recalls("a", 40)]


@pytest.mark.parametrize(("seconds", "left"), [(PATIENCE_S - 0.1, True), (PATIENCE_S, False)])
def test_prompt_outside_its_turn_is_not_protected(seconds: float, *, left: bool) -> None:
    account = _computing(prompt=1)
    account.need("a", 70, 70, 70)
    account.decide(LATER)
    account.need("a", 70, 70, 70, prompt=2)
    account.decide(LATER + seconds)
    assert (_turn(account, LATER + PROMPT_S) == []) is left


def test_prompt_after_a_grant_is_in_turn() -> None:
    """However long the other has waited; but only for the first prompt since."""
    account = Account()
    account.load("a", 20, busy=True, prompt=4)
    account.load("b", 30, busy=True)
    account.load("full", 50, busy=True, reload_s=1000.0)
    account.need("a", 0, 70, 70)
    account.need("b", 0, 60, 60)
    account.decide(LATER)
    account.gone("full")
    now = LATER + 2 * PATIENCE_S
    decided = _turn(account, now)
    assert account.limit("a") == 70, decided
    account.need("a", 70, 70, 70, prompt=5)
    account.footprint("a", 70)
    assert _turn(account, now + 1) == []
    assert _turn(account, now + PROMPT_S) == []
    account.need("a", 70, 70, 70, prompt=6)
    assert _turn(account, now + PROMPT_S + 1) == [recalls("a", 40)]


def test_it_is_nothing_to_a_higher_priority_or_when_nobody_waits_for_it() -> None:
    account = _computing()
    account.record_use("b", priority=1, busy=True, last_used=LATER)
    assert _turn(account, LATER + 1) == [recalls("a", 40)]
    account = _computing()
    account.record_use("a", priority=0, busy=False, last_used=LATER)
    assert Evict("a", "b", busy=False) in _turn(account, LATER + PATIENCE_S)


def test_a_floor_waits_for_it_too() -> None:
    account = _computing()
    account.need("b", 0)
    account.claim("new", 20)
    account.record_use("b", priority=0, busy=True, last_used=LATER)
    assert _turn(account, LATER + PATIENCE_S) == [Evict("b", "new", busy=True)]
    account = Account()
    account.load("a", 80, busy=True, used=80, least=80)
    account.need("a", 80, 80, 80, prompt=1)
    account.decide(LATER)
    account.claim("new", 40)
    assert _turn(account, LATER + PROMPT_S) == [], "nor is a model displaced in the middle of one"


@pytest.mark.parametrize(("floor", "size"), [(10, 60), (60, 2)], ids=["loans", "floors"])
def test_two_in_each_others_way_both_finish(floor: int, size: int) -> None:
    """Prompts of three times the patience; what they make next takes longer still."""
    world = World()
    world.create([floor, floor], set(), [0] * 6, [0] * 6, ["thin"] * 6)
    for model in world.models.values():
        model.waiting.append(Row(0.0, 100.0, size * UNIT, int(PROMPT_S)))
    for _ in range(1000):
        world._second()
    assert [len(model.waiting) + len(model.running) for model in world.models.values()] == [0, 0]


def test_idle_loans_go_before_caches_and_those_before_idle_models() -> None:
    account = Account()
    account.load("a", 10, busy=True, used=40)
    account.load("b", 10, busy=True, used=30)
    account.load("idle", 30)
    account.need("a", 10, cache=10)
    account.need("b", 10)
    account.claim("new", 45)
    assert account.decide(LATER) == [recalls("b", 10), recalls("a", 15)]


def test_busy_model_stays_if_its_eviction_frees_too_little() -> None:
    """Of 100 its rows have 60, and its floor would bring 20 more."""
    account = Account()
    account.load("stays", 20, busy=True, at=LATER, reload_s=1000.0)
    account.load("rows", 20, busy=True, used=80)
    account.claim("new", 90)
    assert account.decide(LATER + PATIENCE_S) == []


def test_evicted_model_gets_no_other_decision() -> None:
    account = Account(budget=70)
    account.load("goes", 30, busy=True, used=50)
    account.load("stays", 10, busy=True, used=20, pinned=True)
    for name in ("goes", "stays"):
        account.need(name, 10)
    account.claim("new", 60)
    assert account.decide(LATER + PATIENCE_S) == [
        Evict("goes", "new", busy=True),
        recalls("stays", 10),
    ]


def _holder(name: str, size: int, *, priority: int = 0, busy: bool = False) -> Allocation:
    return Allocation(name, priority, 0.0, size, size, size, busy=busy)


@pytest.mark.parametrize(
    ("missing", "chosen"),
    [
        (0, []),
        (10, ["idle"]),
        (15, ["idle", "dear"]),
        (25, ["idle", "dear", "small"]),
        (40, ["idle", "large"]),
        (45, ["idle", "dear", "large"]),
        (55, ["idle", "dear", "small", "large"]),
        (56, ["idle", "dear", "small", "large"]),
    ],
)
def test_the_smallest_set_that_is_enough(missing: int, chosen: list[str]) -> None:
    """Idle ones first; of what is spared in the end busy ones, and then what matters more."""
    candidates = [
        _holder("large", 30, priority=1, busy=True),
        _holder("small", 5, busy=True),
        _holder("dear", 10, priority=1),
        _holder("idle", 10),
    ]
    found = enough_to_evict(
        candidates, missing, LATER, lambda allocation: allocation.freed_by_end_bytes
    )
    assert [allocation.model_id for allocation in found] == chosen
