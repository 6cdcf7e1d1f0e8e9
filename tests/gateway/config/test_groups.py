"""Groups in the account: loaded together, in turn, and with room that is kept."""

from __future__ import annotations

import pytest

from gateway.config.model import Group, Groups, reserved_bytes
from gateway.memory.ledger import Admit, Evict, Refuse
from tests.gateway.memory.account import LATER, PATIENCE_S, UNIT, Account, recalls

OVERDUE = LATER + PATIENCE_S


def _account(*groups: Group, budget: int = 100, **floors: int) -> Account:
    account = Account(budget=budget)
    account.arrange(groups)
    for name, floor in floors.items():
        account.know(name, floor * UNIT)
    return account


def _together(*names: str) -> Group:
    return Group("t", names, together=True)


def _swap(*names: str) -> Group:
    return Group("s", names, swap=True)


def _reserve(*names: str) -> Group:
    return Group("r", names, reserve=True)


def _admits(**floors: int) -> list[Admit]:
    return [Admit(name, floor * UNIT) for name, floor in floors.items()]


def test_groups_name_companions_and_rivals() -> None:
    groups = Groups(
        [_together("a", "b", "c"), _swap("c", "d"), _swap("d", "e"), _reserve("a", "e")]
    )
    assert groups.companions("a") == {"b", "c"}
    assert groups.companions("d") == set()
    assert groups.companions_of({"a", "b"}) == {"a", "b", "c"}
    assert groups.rivals({"d"}) == {"c", "e"}
    assert groups.rivals({"a", "c"}) == {"d"}
    assert groups.counted_with("a") == {"b", "c", "e"}
    assert groups.counted_with("d") == {"a", "e"}
    assert (groups.reserved("e"), groups.reserved("c")) == (True, False)
    assert [groups.swap_group_of(*pair) for pair in (("d", "e"), ("c", "e"))] == [
        groups.all[2],
        None,
    ]
    assert groups.reserving == (groups.all[3],)
    assert not Groups().all


def test_reserved_bytes_shrink_with_present_members() -> None:
    floors = {"a": 10, "b": 30}
    every, turns = _reserve("a", "b", "new"), Group("r", ("a", "b", "new"), swap=True, reserve=True)
    for present, of_every, of_turns in (
        ((), 40, 30),
        (("a",), 30, 20),
        (("b",), 10, 0),
        (("a", "b"), 0, 0),
    ):
        assert reserved_bytes(every, floors, present) == of_every
        assert reserved_bytes(turns, floors, present) == of_turns


class TestTogether:
    def test_all_are_admitted_in_one_turn(self) -> None:
        account = _account(_together("a", "b"))
        account.claim("a", 30)
        account.claim("b", 20)
        assert account.decide(LATER) == _admits(a=30, b=20)
        assert not list(account.claims)

    def test_none_is_admitted_without_the_other(self) -> None:
        account = _account(_together("a", "b"))
        account.load("busy", 60, busy=True)
        account.claim("a", 30)
        account.claim("b", 20)
        assert account.decide(LATER) == []
        assert account.decide(OVERDUE) == [Evict("busy", "a", busy=True)]
        account.gone("busy")
        assert account.decide(OVERDUE) == _admits(a=30, b=20)

    def test_the_earlier_and_more_important_one_counts_for_both(self) -> None:
        account = _account(_together("a", "b"))
        account.load("busy", 60, busy=True, priority=1)
        account.claim("a", 30, now=LATER)
        account.claim("b", 20, priority=2, now=LATER + 1)
        assert account.decide(LATER + 1) == [Evict("busy", "a", busy=True)]
        other = _account(_together("a", "b"))
        other.load("busy", 60, busy=True)
        other.claim("a", 30, now=LATER + PATIENCE_S)
        other.claim("b", 20, now=LATER)
        assert other.decide(OVERDUE) == [Evict("busy", "a", busy=True)]

    def test_companions_that_never_fit_are_both_refused(self) -> None:
        account = _account(_together("a", "b"))
        account.load("pinned", 10, pinned=True)
        account.claim("a", 60)
        account.claim("b", 31)
        assert account.decide(LATER) == [
            Refuse("a", 91 * UNIT, 90 * UNIT, ("b",)),
            Refuse("b", 91 * UNIT, 90 * UNIT, ("a",)),
        ]
        assert not list(account.claims)

    def test_load_waits_for_expected_companion(self) -> None:
        account = _account(_together("a", "b"))
        account.claim("a", 30)
        account.expect("b")
        account.claim("other", 10)
        assert account.decide(LATER) == _admits(other=10)
        account.claim("b", 20)
        assert account.decide(LATER) == _admits(a=30, b=20)

    def test_load_does_not_wait_for_withdrawn_companion(self) -> None:
        account = _account(_together("a", "b"))
        account.claim("a", 30)
        account.expect("b")
        account.withdraw("b")
        assert account.decide(LATER) == _admits(a=30)
        account.expect("a")
        account.claim("b", 20)
        assert account.decide(LATER) == _admits(b=20), "it holds memory and asks no more"

    def test_load_waits_for_ending_companion(self) -> None:
        account = _account(_together("a", "b"))
        account.load("b", 20)
        account.ending("b")
        account.claim("a", 30)
        assert account.decide(LATER) == []
        account.gone("b")
        assert account.decide(LATER) == _admits(a=30)

    def test_load_does_not_evict_own_companion(self) -> None:
        account = _account(_together("a", "b"))
        account.load("b", 60)
        account.load("idle", 20)
        account.claim("a", 35)
        assert account.decide(LATER) == [Evict("idle", "a", busy=False)]
        account.gone("idle")
        assert account.decide(LATER) == _admits(a=35)
        account.withdraw("a")
        account.gone("a")
        account.claim("a", 45)
        assert account.decide(LATER) == [Refuse("a", 45 * UNIT, 40 * UNIT)]

    def test_it_is_missed_as_its_company_is(self) -> None:
        account = _account(_together("a", "b"))
        account.load("a", 30, last_used=10)
        account.load("b", 30, last_used=90)
        account.load("c", 30, last_used=50)
        account.claim("new", 30)
        assert account.decide(LATER) == [Evict("c", "new", busy=False)]

    def test_it_is_busy_as_its_company_is(self) -> None:
        account = _account(_together("a", "b"))
        account.load("a", 50, last_used=10)
        account.load("b", 40, busy=True)
        account.claim("new", 30)
        assert account.decide(LATER) == []
        assert account.decide(OVERDUE) == [Evict("a", "new", busy=False)]

    def test_it_keeps_its_place_while_its_company_loads(self) -> None:
        account = _account(_together("a", "b"))
        account.load("a", 50)
        account.claim("b", 30)
        account.decide(LATER)
        account.claim("new", 40, now=LATER - PATIENCE_S)
        assert account.decide(LATER) == []
        account.ready("b", LATER)
        account.record_use("b", priority=0, busy=False, last_used=LATER)
        assert account.decide(LATER) == [Evict("a", "new", busy=False)]

    def test_a_long_sequence_has_its_bound_beside_its_company(self) -> None:
        account = _account(_together("a", "b"), b=40)
        account.load("a", 30)
        assert account.ledger.attainable_bytes("a") == 60 * UNIT
        account.load("b", 40)
        assert account.ledger.attainable_bytes("a") == 60 * UNIT
        assert account.ledger.possible_for("other") == 100 * UNIT


class TestSwap:
    def test_an_idle_rival_goes_although_there_is_room(self) -> None:
        account = _account(_swap("a", "b"))
        account.load("a", 20)
        account.claim("b", 20)
        assert account.decide(LATER) == [Evict("a", "b", busy=False)]
        assert account.decide(LATER) == [], "it hasn't ended yet"
        account.gone("a")
        assert account.decide(LATER) == _admits(b=20)

    def test_first_of_two_waiting_rivals_is_admitted(self) -> None:
        account = _account(_swap("a", "b"))
        account.claim("a", 20)
        account.claim("b", 20, now=LATER + 1)
        account.claim("other", 20, now=LATER + 1)
        assert account.decide(LATER + 1) == _admits(a=20, other=20)

    def test_a_busy_rival_goes_when_it_is_the_others_turn(self) -> None:
        account = _account(_swap("a", "b"))
        account.load("a", 20, busy=True)
        account.claim("b", 20)
        account.claim("other", 20)
        assert account.decide(LATER) == _admits(other=20), "it stands in nobody's way"
        assert account.decide(OVERDUE) == [Evict("a", "b", busy=True)]

    def test_a_busy_rival_goes_for_one_that_matters_more(self) -> None:
        account = _account(_swap("a", "b"))
        account.load("a", 20, busy=True)
        account.claim("b", 20, priority=1)
        assert account.decide(LATER) == [Evict("a", "b", busy=True)]

    def test_a_rival_that_has_just_been_loaded_keeps_its_place(self) -> None:
        account = _account(_swap("a", "b"))
        account.load("a", 20, busy=True, at=LATER, reload_s=30.0)
        account.claim("b", 20, priority=1, now=LATER - PATIENCE_S)
        assert account.decide(LATER + 29) == []
        assert account.decide(LATER + 30) == [Evict("a", "b", busy=True)]

    def test_a_rivals_memory_counts_for_the_room(self) -> None:
        account = _account(_swap("a", "b"))
        account.load("idle", 30)
        account.load("a", 60)
        account.claim("b", 70)
        assert account.decide(LATER) == [Evict("a", "b", busy=False)]
        account.gone("a")
        assert account.decide(LATER) == _admits(b=70)

    def test_a_pinned_rival_stays(self) -> None:
        account = _account(_swap("a", "b"))
        account.load("a", 20, pinned=True)
        account.claim("b", 20)
        assert account.decide(OVERDUE) == []

    def test_rivals_since_a_reload_part(self) -> None:
        account = _account()
        account.load("a", 20, busy=True, last_used=90)
        account.load("b", 20, busy=True, last_used=50)
        account.load("c", 20)
        account.arrange([_swap("a", "b")])
        assert account.decide(LATER) == [Evict("b", "a", busy=True)]
        assert account.decide(LATER) == []

    @pytest.mark.parametrize(("pinned", "gone"), [("a", "b"), ("b", "a")])
    def test_a_pinned_one_stays_then(self, pinned: str, gone: str) -> None:
        account = _account()
        for name in ("a", "b"):
            account.load(name, 20, pinned=name == pinned)
        account.arrange([_swap("a", "b")])
        assert account.decide(LATER) == [Evict(gone, pinned, busy=False)]


class TestReserve:
    def test_no_other_load_takes_the_room(self) -> None:
        account = _account(_reserve("a", "b"), a=40, b=30)
        account.claim("other", 31)
        assert account.decide(LATER) == [Refuse("other", 31 * UNIT, 30 * UNIT)]
        account.claim("other", 30)
        assert account.decide(LATER) == _admits(other=30)
        account.claim("a", 40)
        account.claim("b", 30)
        assert account.decide(LATER) == _admits(a=40, b=30)

    def test_another_load_evicts_others_instead(self) -> None:
        account = _account(_reserve("a", "b"), a=40, b=30)
        account.load("a", 40)
        account.load("idle", 20)
        account.claim("new", 20)
        assert account.decide(LATER) == [Evict("idle", "new", busy=False)]

    def test_no_member_goes_for_another(self) -> None:
        account = _account(_reserve("a", "b"), a=40, b=30)
        account.load("a", 40, busy=True)
        account.claim("new", 40, priority=9)
        assert account.decide(OVERDUE) == [Refuse("new", 40 * UNIT, 30 * UNIT)]

    def test_the_room_is_lent_and_called_back(self) -> None:
        account = _account(_reserve("a", "b"), a=40, b=30)
        account.load("other", 20, busy=True, priority=5, used=90, wanted=90, least=25)
        assert account.limit("other") == 90
        account.claim("a", 40)
        assert account.decide(LATER) == [recalls("other", 60)], "no priority keeps it"
        account.need("other", 60, 90, 25)
        account.footprint("other", 60)
        account.obey([recalls("other", 60)])
        assert account.decide(LATER) == _admits(a=40)

    def test_a_load_of_another_leaves_the_loans_in_it(self) -> None:
        account = _account(_reserve("a", "b"), a=40, b=10)
        account.load("other", 10, busy=True, used=90, wanted=90)
        account.claim("new", 20)
        assert account.decide(LATER) == [recalls("other", 80)]
        account.need("other", 80, 90)
        account.footprint("other", 80)
        account.obey([recalls("other", 80)])
        assert account.decide(LATER) == _admits(new=20)

    def test_another_load_waits_until_the_room_would_be_there(self) -> None:
        account = _account(_reserve("a", "b"), a=40, b=10)
        account.load("other", 10, busy=True, used=20, wanted=20, priority=1)
        account.load("busy", 30, busy=True)
        account.claim("new", 20)
        assert account.decide(LATER) == []
        decisions = account.decide(OVERDUE)
        assert decisions[0] == Evict("busy", "new", busy=True)
        account.gone("busy")
        assert _admits(new=20)[0] in account.decide(OVERDUE)

    def test_a_budget_that_shrinks_ends_members_last(self) -> None:
        account = _account(_reserve("a", "b"), a=40, b=30)
        for name, floor in (("a", 40), ("b", 30), ("c", 30)):
            account.load(name, floor)
        account.configure(65 * UNIT, PATIENCE_S, 0)
        gone = account.decide(LATER)
        assert {item.model_id for item in gone} == {"c", "a"}

    def test_a_machine_that_is_short_ends_members_last(self) -> None:
        account = _account(_reserve("a"), a=40)
        account.load("a", 40, last_used=10)
        account.load("c", 30, last_used=90)
        assert account.relieve(LATER, all_idle=False) == [Evict("c", None, busy=False)]
        assert account.relieve(LATER, all_idle=False) == [Evict("a", None, busy=False)]

    def test_with_swap_the_largest_has_room(self) -> None:
        account = _account(Group("r", ("a", "b"), swap=True, reserve=True), a=40, b=30)
        account.load("b", 30)
        account.claim("other", 61)
        assert account.decide(LATER) == [Refuse("other", 61 * UNIT, 60 * UNIT)]
        account.claim("other", 60)
        assert account.decide(LATER) == _admits(other=60)
        account.claim("a", 40)
        assert account.decide(LATER) == [Evict("b", "a", busy=False)]
        account.gone("b")
        assert account.decide(LATER) == _admits(a=40)

    def test_groups_that_are_gone_keep_nothing(self) -> None:
        account = _account(_reserve("a", "b"), a=40, b=30)
        account.load("a", 40)
        account.arrange([])
        account.claim("new", 100)
        assert account.decide(LATER) == [Evict("a", "new", busy=False)]


def test_forecast_names_evictions_of_load() -> None:
    account = _account(_together("a", "b"))
    account.load("idle", 20)
    account.load("busy", 50, busy=True)
    floors = {"a": 40 * UNIT, "b": 20 * UNIT}
    at_once, later = account.foresee(floors, 0, LATER)
    assert at_once == []
    assert later == [Evict("busy", "a", busy=True)]
    assert account.decide(LATER) == [], "nothing was decided"
    assert not list(account.claims)
    account.record_use("busy", priority=0, busy=False, last_used=LATER)
    assert account.foresee({"a": 30 * UNIT}, 0, LATER)[0] == _admits(a=30)


def test_two_rivals_of_which_one_stays_keep_their_place() -> None:
    account = _account(Group("s", ("a", "b"), swap=True), Group("s2", ("a", "c"), swap=True))
    account.load("b", 20)
    account.load("c", 20, busy=True)
    account.claim("a", 20)
    assert account.decide(LATER) == [], "neither goes for nothing"
    decisions = account.decide(OVERDUE)
    assert {decision.model_id for decision in decisions} == {"b", "c"}


def test_room_for_a_part_of_them_is_no_right_to_all() -> None:
    account = _account(_together("a", "b"), _reserve("a"), a=20)
    account.load("other", 20, busy=True, priority=5, used=90, wanted=90)
    account.claim("a", 20)
    account.claim("b", 20)
    assert account.decide(LATER) == [], "who matters more keeps its loan"


def test_room_of_ending_member_stays_reserved() -> None:
    account = _account(_reserve("a", "b"))
    account.load("a", 40)
    account.ending("a")
    account.gone("a")
    account.claim("other", 61)
    assert account.decide(LATER) == [Refuse("other", 61 * UNIT, 60 * UNIT)]
