"""What makes room, in which order, and what becomes of those that don't give it."""

from __future__ import annotations

import pytest

from gateway.memory.admission_round import OVERGROWN_S, RECALL_S
from gateway.memory.allocation import MemoryNeed
from gateway.memory.ledger import Admit, Evict, LimitChange, Refuse, Replace, Unanswered
from gateway.memory.loans import IDLE_LOAN_S, REBALANCE_S
from tests.gateway.memory.account import (
    LATER,
    PATIENCE_S,
    UNIT,
    Account,
    lends,
    reading_of,
    recalls,
)


def admits(name: str, floor: int) -> Admit:
    return Admit(name, floor * UNIT)


class TestRoomForALoad:
    def test_free_memory_is_reserved_at_once(self) -> None:
        account = Account()
        account.claim("a", 60)
        account.claim("b", 40)
        account.claim("c", 1)
        assert account.decide(LATER) == [admits("a", 60), admits("b", 40)]
        assert [claim.model_id for claim in account.claims] == ["c"]
        assert account.free == 0
        account.gone("b")
        assert account.decide(LATER) == [admits("c", 1)]

    def test_it_waits_for_no_more_than_it_lacks(self) -> None:
        account = Account()
        account.load("a", 10, busy=True, used=20, wanted=80)
        assert (account.limit("a"), account.free) == (80, 20)
        account.need("a", 20)
        account.claim("b", 30)
        assert account.decide(LATER) == [recalls("a", 70)]
        assert account.decide(LATER) == [], "it is on its way"
        assert account.free == 20, "bytes that are called back are free when they are seen to be"
        account.obey([recalls("a", 70)])
        assert account.decide(LATER) == [admits("b", 30)]

    def test_a_footprint_shows_whether_a_loan_came_back(self) -> None:
        account = Account()
        account.load("a", 10, busy=True, used=20, wanted=80)
        account.footprint("a", 80)
        account.need("a", 20)
        account.claim("b", 30)
        account.obey(account.decide(LATER))
        assert account.decide(LATER) == []
        account.footprint("a", 70)
        assert account.decide(LATER) == [admits("b", 30)]

    def test_idle_loans_go_before_idle_models(self) -> None:
        account = Account()
        account.load("idle", 30, last_used=LATER - 1)
        account.load("lender", 10, busy=True, used=20, wanted=70)
        account.need("lender", 20)
        account.claim("new", 50)
        assert account.decide(LATER) == [recalls("lender", 20)]

    def test_cheapest_idle_loans_are_recalled_first(self) -> None:
        account = Account()
        for name, priority, used_at in (("dear", 1, 0), ("new", 0, 99), ("old", 0, 98)):
            account.load(
                name, 10, priority=priority, last_used=used_at, used=12, wanted=30, busy=True
            )
            account.need(name, 12)
        account.claim("next", 45)
        assert account.decide(LATER) == [recalls("old", 12), recalls("new", 13)]

    def test_idle_models_with_least_worth_go_first(self) -> None:
        for models, gone in (
            ((("a", 0, 97, 0), ("b", 0, 96, 9), ("c", 1, 95, 0)), "b"),
            # A load of 60 s is dearer than one of 4 s, unless nobody has needed it for long.
            ((("a", 0, 90, 4), ("b", 0, 60, 60), ("c", 0, 60, 60)), "a"),
            ((("a", 0, 98, 4), ("b", 0, 40, 60), ("c", 0, 90, 60)), "b"),
            ((("a", 0, 99.9, 20), ("b", 0, 99.5, 30), ("c", 0, 99.2, 40)), "a"),
            ((("a", 1, 99, 0), ("b", 1, 98, 0), ("c", 0, 100, 9)), "c"),
            ((("a", 0, 99, 13), ("b", 0, 99, 12), ("c", 0, 99, 14)), "b"),
        ):
            account = Account()
            for name, priority, last_used, reload_s in models:
                account.load(name, 30, priority=priority, last_used=last_used, reload_s=reload_s)
            account.claim("new", 40)
            assert account.decide(LATER) == [Evict(gone, "new", busy=False)]
            assert account.decide(LATER) == []
            account.gone(gone)
            assert account.decide(LATER) == [admits("new", 40)]

    def test_the_smallest_set_that_is_enough_goes(self) -> None:
        account = Account()
        for name, size, last_used in (("small", 10, 91), ("large", 60, 92), ("other", 25, 93)):
            account.load(name, size, last_used=last_used)
        account.claim("new", 60)
        assert account.decide(LATER) == [Evict("large", "new", busy=False)]

    def test_free_bytes_count_beside_those_of_evictions(self) -> None:
        account = Account()
        account.load("a", 30, last_used=91)
        account.load("b", 50, last_used=92)
        account.claim("new", 50)
        assert account.decide(LATER) == [Evict("a", "new", busy=False)]

    def test_pinned_models_stay_and_give_back_loans_alone(self) -> None:
        account = Account()
        account.load("pinned", 30, pinned=True, busy=True, used=40, wanted=60)
        account.load("idle", 40)
        account.need("pinned", 40)
        account.claim("new", 50)
        decided = account.decide(LATER)
        assert decided == [recalls("pinned", 40), Evict("idle", "new", busy=False)]
        account.claim("huge", 71)
        account.record_use("huge", priority=9, busy=True, last_used=0.0)
        assert account.decide(LATER) == [Refuse("huge", 71 * UNIT, 70 * UNIT)]
        assert [claim.model_id for claim in account.claims] == ["new"]
        account.pin("pinned", pinned=False)
        account.claim("huge", 71, now=LATER)
        assert account.decide(LATER) == []

    def test_idle_models_go_before_rows_of_equals(self) -> None:
        account = Account()
        account.load("busy", 30, busy=True, used=60)
        account.load("idle", 30, priority=1)
        account.claim("new", 40)
        assert account.decide(LATER) == [Evict("idle", "new", busy=False)]

    @pytest.mark.parametrize("priority", [0, 1])
    def test_rows_of_those_that_matter_no_more_make_room_for_a_floor(self, priority: int) -> None:
        account = Account()
        account.load("busy", 30, busy=True, used=90)
        account.claim("new", 40, priority=priority)
        assert account.decide(LATER) == [recalls("busy", 60)]

    def test_rows_of_a_higher_priority_stay_until_patience_ends(self) -> None:
        account = Account()
        account.load("busy", 30, priority=1, busy=True, used=90)
        account.claim("new", 40)
        assert account.decide(LATER + PATIENCE_S - 0.1) == []
        assert account.decide(LATER + PATIENCE_S) == [recalls("busy", 60)]

    def test_rows_go_before_a_busy_model_does(self) -> None:
        account = Account()
        account.load("large", 50, busy=True, last_used=1)
        account.load("busy", 10, busy=True, used=50, last_used=2)
        account.claim("new", 40, priority=5)
        assert account.decide(LATER) == [recalls("busy", 10)]

    def test_a_busy_model_has_its_patience_from_an_equal_and_none_from_a_higher_one(self) -> None:
        account = Account()
        account.load("busy", 80, busy=True)
        account.claim("new", 40)
        assert account.decide(LATER + PATIENCE_S - 0.1) == []
        assert account.decide(LATER + PATIENCE_S) == [Evict("busy", "new", busy=True)]
        account = Account()
        account.load("busy", 80, busy=True)
        account.claim("new", 40, priority=1)
        assert account.decide(LATER) == [Evict("busy", "new", busy=True)]

    def test_of_busy_models_as_few_go_as_it_takes(self) -> None:
        account = Account()
        for name, floor, used_at in (("a", 20, 1), ("b", 50, 2), ("c", 30, 3)):
            account.load(name, floor, busy=True, last_used=used_at)
        account.claim("new", 50, priority=1)
        assert account.decide(LATER) == [Evict("b", "new", busy=True)]
        assert account.decide(LATER) == []

    def test_of_busy_models_what_their_rows_give_without_that_counts_once(self) -> None:
        account = Account()
        account.load("a", 20, busy=True, used=60, last_used=1)
        account.load("b", 40, busy=True, last_used=2)
        account.claim("new", 75, priority=1)
        assert account.decide(LATER) == [Evict("b", "new", busy=True), recalls("a", 25)]

    def test_evicted_model_gives_no_rows_as_well(self) -> None:
        account = Account()
        account.load("a", 30, busy=True, used=60, last_used=1)
        account.load("b", 10, busy=True, used=40, last_used=2)
        account.claim("new", 85, priority=1)
        assert account.decide(LATER) == [Evict("a", "new", busy=True), recalls("b", 15)]

    def test_model_that_was_just_loaded_is_protected(self) -> None:
        """For a quarter of the patience, or as long as its load took."""
        for reload_s, protected_s in ((0.0, 2.5), (7.0, 7.0)):
            account = Account()
            account.load("busy", 80, busy=True, at=LATER, reload_s=reload_s)
            account.claim("new", 40, priority=1)
            assert account.decide(LATER + protected_s - 0.1) == []
            assert account.decide(LATER + protected_s) == [Evict("busy", "new", busy=True)]

    def test_while_it_keeps_its_place_its_first_row_stays(self) -> None:
        account = Account()
        account.load("busy", 20, busy=True, used=90, least=50, at=LATER)
        account.claim("new", 80, priority=1)
        assert account.decide(LATER) == [], "all that it may give would not do"
        account.withdraw("new")
        account.claim("new", 40, priority=1)
        assert account.decide(LATER) == [recalls("busy", 60)]
        account = Account()
        account.load("busy", 20, busy=True, used=90, least=50, at=LATER)
        account.claim("new", 80, priority=1)
        assert account.decide(LATER + PATIENCE_S) == [recalls("busy", 20)]

    def test_an_idle_model_has_no_place_to_keep(self) -> None:
        account = Account()
        account.load("idle", 80, at=LATER)
        account.claim("new", 40)
        assert account.decide(LATER) == [Evict("idle", "new", busy=False)]

    def test_nothing_goes_where_all_of_it_would_not_do(self) -> None:
        account = Account()
        account.load("idle", 20)
        account.load("busy", 70, busy=True)
        account.claim("new", 50)
        assert account.decide(LATER) == []
        assert account.decide(LATER + PATIENCE_S) == [Evict("busy", "new", busy=True)]

    def test_bytes_that_are_freed_for_a_claim_go_to_no_other(self) -> None:
        account = Account()
        account.load("idle", 60)
        account.claim("first", 70)
        account.claim("second", 35, now=LATER + 1)
        assert account.decide(LATER + 1) == [Evict("idle", "first", busy=False)]
        assert account.decide(LATER + 1) == []
        account.ending("idle")
        account.gone("idle")
        assert account.decide(LATER + 1) == [admits("first", 70)]

    def test_coming_bytes_of_a_claim_do_not_count_twice(self) -> None:
        account = Account()
        account.load("a", 50, last_used=98)
        account.load("b", 50, last_used=99)
        account.claim("first", 30)
        account.claim("second", 30, now=LATER + 1)
        assert account.decide(LATER + 1) == [
            Evict("a", "first", busy=False),
            Evict("b", "second", busy=False),
        ]

    def test_surplus_of_coming_bytes_serves_the_next_claim(self) -> None:
        account = Account()
        account.load("a", 60, last_used=98)
        account.load("b", 40, last_used=99)
        account.claim("first", 30)
        account.claim("second", 30, now=LATER + 1)
        assert account.decide(LATER + 1) == [Evict("a", "first", busy=False)]
        account.gone("a")
        assert account.decide(LATER + 1) == [admits("first", 30), admits("second", 30)]

    def test_while_one_waits_for_busy_models_others_that_fit_may_pass(self) -> None:
        account = Account()
        account.load("busy", 60, busy=True)
        account.claim("large", 80)
        account.claim("small", 30, now=LATER + 1)
        assert account.decide(LATER + 1) == [admits("small", 30)]

    def test_but_not_once_it_has_waited_long_enough(self) -> None:
        account = Account()
        account.load("pinned", 15, busy=True, pinned=True)
        account.load("busy", 50, busy=True, at=LATER, reload_s=50.0)
        account.claim("large", 80)
        now = LATER + PATIENCE_S
        account.claim("small", 30, priority=9, now=now)
        assert account.decide(now) == [], "those who waited so long come before a priority"
        account.withdraw("large")
        assert account.decide(now) == [admits("small", 30)]

    def test_the_order_is_patience_then_priority_then_time(self) -> None:
        account = Account(budget=10)
        account.load("all", 10, busy=True)
        for name, priority, since in (("c", 1, 2), ("a", 5, 9), ("b", 1, 1), ("d", 0, 0)):
            account.claim(name, 4, priority, LATER + since)
        account.claim("c", 4, 1, LATER + 9)
        account.gone("all")
        assert account.decide(LATER + 9) == [admits("a", 4), admits("b", 4)]
        account.gone("a")
        assert account.decide(LATER + PATIENCE_S) == [admits("d", 4)]
        account.record_use("c", priority=-1, busy=True, last_used=0.0)
        account.claim("e", 4, 0, LATER + 10)
        account.gone("b")
        assert account.decide(LATER + 10) == [admits("e", 4)]

    def test_claim_may_change_its_bytes(self) -> None:
        account = Account(budget=10)
        account.claim("a", 11)
        account.claim("a", 9)
        assert account.decide(LATER) == [admits("a", 9)]
        with pytest.raises(ValueError, match="a holds memory already"):
            account.claim("a", 9)

    def test_asking_again_changes_what_it_matters(self) -> None:
        account = Account(budget=10)
        account.claim("a", 8)
        account.claim("b", 8, now=LATER + 1)
        account.claim("b", 8, priority=1, now=LATER + 2)
        assert account.decide(LATER + 2) == [admits("b", 8)]

    def test_priority_of_a_loaded_model_may_change(self) -> None:
        account = Account()
        account.load("a", 80, busy=True)
        account.record_use("a", priority=5, busy=True, last_used=LATER)
        account.claim("b", 40, priority=1)
        assert account.decide(LATER) == []

    def test_loading_model_is_pinned_already(self) -> None:
        account = Account()
        account.claim("a", 30, pinned=True)
        account.claim("b", 71, now=LATER + 1)
        assert account.decide(LATER + 1) == [Refuse("b", 71 * UNIT, 70 * UNIT), admits("a", 30)]
        account.pin("a", pinned=False)
        account.claim("b", 71, now=LATER + 1)
        assert account.decide(LATER + 1) == []
        account.pin("a", pinned=True)
        assert account.decide(LATER + 1) == [Refuse("b", 71 * UNIT, 70 * UNIT)]
        account.ready("a", LATER)
        allocation = account.ledger.allocation("a")
        assert allocation is not None
        assert (allocation.pinned, allocation.reload_s) == (True, 0.0)

    def test_waiting_model_may_be_pinned(self) -> None:
        account = Account()
        account.load("busy", 80, busy=True)
        account.claim("a", 40, pinned=True)
        account.claim("b", 40, now=LATER + 1)
        account.decide(LATER + 1)
        account.pin("a", pinned=False)
        account.pin("b", pinned=True)
        account.gone("busy")
        assert account.decide(LATER + 2) == [admits("a", 40), admits("b", 40)]
        for name, pinned in (("a", False), ("b", True)):
            allocation = account.ledger.allocation(name)
            assert allocation is not None
            assert allocation.pinned is pinned


class TestRecalls:
    @staticmethod
    def recalled(*, answered: int) -> Account:
        """30 of the 80 of "a" are called back for "b", at `LATER`."""
        account = Account()
        account.load("a", 10, busy=True, used=20, wanted=80)
        account.footprint("a", 80)
        account.need("a", 20)
        account.claim("b", 50)
        assert account.decide(LATER) == [recalls("a", 50)]
        account.record_need("a", MemoryNeed(20 * UNIT, 20 * UNIT, 0), answered * UNIT)
        assert account.decide(LATER) == []
        return account

    def test_a_worker_that_does_not_answer_hangs(self) -> None:
        account = self.recalled(answered=80)
        account.footprint("a", 20)
        assert account.decide(LATER + RECALL_S - 0.1) == []
        assert account.decide(LATER + RECALL_S) == [Unanswered("a", RECALL_S)]
        assert account.decide(LATER + RECALL_S + 1) == [], "its end is under way"
        account.gone("a")
        assert account.decide(LATER + RECALL_S + 1) == [admits("b", 50)]

    def test_more_that_is_called_back_gives_no_more_time(self) -> None:
        account = self.recalled(answered=80)
        account.claim("c", 10, now=LATER + 5)
        assert account.decide(LATER + 5) == [recalls("a", 40)]
        assert Unanswered("a", RECALL_S) in account.decide(LATER + RECALL_S)

    def test_answered_recall_gives_the_next_its_full_time(self) -> None:
        """Though the machine doesn't show yet what the first answer freed."""
        account = self.recalled(answered=50)
        account.claim("c", 10, now=LATER + 10)
        assert account.decide(LATER + 10) == [recalls("a", 40)]
        assert account.decide(LATER + 10 + RECALL_S - 0.1) == []
        assert account.decide(LATER + 10 + RECALL_S) == [Unanswered("a", RECALL_S)]

    def test_answer_to_an_earlier_recall_is_no_hang(self) -> None:
        """It was in a step when it was told again."""
        account = self.recalled(answered=80)
        account.claim("c", 10, now=LATER + 5)
        assert account.decide(LATER + 5) == [recalls("a", 40)]
        account.obey([recalls("a", 50)])
        assert account.decide(LATER + 6) == []
        assert account.decide(LATER + 6 + RECALL_S - 0.1) == []
        assert account.decide(LATER + 6 + RECALL_S) == [Unanswered("a", RECALL_S)]

    def test_bytes_of_a_late_answer_may_show_later(self) -> None:
        account = self.recalled(answered=80)
        account.configure(100 * UNIT, 1000.0, 0)
        account.obey([recalls("a", 50)])
        assert account.decide(LATER + RECALL_S - 0.1) == []
        assert account.decide(LATER + RECALL_S) == []
        account.footprint("a", 50)
        assert account.decide(LATER + RECALL_S) == [admits("b", 50)]

    @pytest.mark.parametrize("answered", [80, 50])
    def test_busy_model_regains_recalled_bytes_without_a_claim(self, answered: int) -> None:
        account = self.recalled(answered=answered)
        account.need("a", 20, 60, held=1)
        assert account.decide(LATER + 1) == [], "it is on its way to another"
        account.withdraw("b")
        assert account.decide(LATER + 1) == [lends("a", 60)]
        assert account.free == 20
        account.need("a", 20, 90, held=1)
        assert account.decide(LATER + 1) == [lends("a", 90)]
        assert account.free == 10

    def test_bytes_that_come_for_a_claim_go_to_no_later_claim(self) -> None:
        account = self.recalled(answered=80)
        account.need("a", 20, 60, 60)
        assert account.decide(LATER + 1) == [], "its next sequence needs 10 more than it may have"
        account.withdraw("b")
        assert account.decide(LATER + 1) == [lends("a", 60)]

    def test_idle_model_gives_back_recalled_bytes_without_a_claim(self) -> None:
        """The machine may be short of it."""
        account = self.recalled(answered=80)
        account.record_use("a", priority=0, busy=False, last_used=LATER)
        account.need("a", 0, cache=70, cache_wanted=70)
        account.withdraw("b")
        assert account.decide(LATER + 1) == []

    def test_answered_recall_is_closed(self) -> None:
        account = self.recalled(answered=50)
        account.footprint("a", 50.5)
        account.withdraw("b")
        assert account.decide(LATER + 1) == []
        account.claim("c", 60, now=LATER + 30)
        assert account.decide(LATER + 30) == [recalls("a", 39.5)]
        assert account.decide(LATER + 31) == [], "this one has just begun"

    def test_bytes_that_a_worker_can_not_give_back_become_its_floor(self) -> None:
        account = self.recalled(answered=50)
        account.footprint("a", 60)
        assert account.decide(LATER) == [lends("a", 60)]
        allocation = account.ledger.allocation("a")
        assert allocation is not None
        assert (allocation.floor_bytes, allocation.idle_loan_bytes) == (60 * UNIT, 0)
        assert account.decide(LATER) == [], "it isn't asked for that again"

    def test_stuck_bytes_that_are_freed_later_can_be_recalled(self) -> None:
        account = self.recalled(answered=50)
        account.footprint("a", 60)
        account.obey(account.decide(LATER))
        account.footprint("a", 40)
        assert account.decide(LATER) == [recalls("a", 50)]
        account.obey([recalls("a", 50)])
        assert account.decide(LATER) == [admits("b", 50)]
        account.footprint("a", 5)
        account.decide(LATER)
        allocation = account.ledger.allocation("a")
        assert allocation is not None
        assert allocation.floor_bytes == 10 * UNIT

    @pytest.mark.parametrize("answers", [True, False])
    def test_bytes_of_a_slow_answer_stay_for_the_earlier_claim(self, *, answers: bool) -> None:
        """Though the model waits for them itself, for longer than the patience."""
        account = Account()
        account.load("a", 45, busy=True, used=65, least=65)
        account.claim("b", 40, priority=1)
        assert account.decide(LATER) == [recalls("a", 60)]
        for second in range(1, int(RECALL_S)):
            assert account.decide(LATER + second) == []
        if answers:
            account.obey([recalls("a", 60)])
            account.footprint("a", 60)
            assert account.decide(LATER + RECALL_S) == [admits("b", 40)]
        else:
            assert account.decide(LATER + RECALL_S) == [Unanswered("a", RECALL_S)]

    def test_a_reading_from_before_its_answer_says_nothing(self) -> None:
        account = self.recalled(answered=50)
        account.record("a", reading_of(80 * UNIT, 80 * UNIT))
        assert account.decide(LATER) == []
        account.footprint("a", 50)
        assert account.decide(LATER) == [admits("b", 50)]

    def test_last_reading_counts_if_no_other_comes(self) -> None:
        account = self.recalled(answered=50)
        account.configure(100 * UNIT, 1000.0, 0)
        assert account.decide(LATER + RECALL_S - 0.1) == []
        account.decide(LATER + RECALL_S)
        assert account.decide(LATER + RECALL_S) == [lends("a", 80)]

    def test_stuck_worker_over_the_budget_is_asked_for_no_more(self) -> None:
        account = self.recalled(answered=50)
        account.footprint("a", 100)
        assert account.decide(LATER) == [lends("a", 100)]
        account = self.recalled(answered=50)
        account.footprint("a", 101)
        assert account.decide(LATER) == []
        assert account.limit("a") == 50
        assert account.decide(LATER + OVERGROWN_S) == [Replace("a", 101 * UNIT, 50 * UNIT)]


class TestOvergrown:
    def test_limit_follows_the_footprint_while_there_is_room(self) -> None:
        account = Account()
        account.load("a", 50, busy=True)
        account.footprint("a", 50.5)
        assert account.decide(LATER) == [], "that is noise"
        account.footprint("a", 100)
        assert account.decide(LATER) == [lends("a", 100)]
        assert account.decide(LATER) == []

    def test_overgrown_worker_is_replaced_after_others_gave_memory(self) -> None:
        account = Account()
        account.load("a", 50, busy=True)
        account.load("b", 10, busy=True, used=15, wanted=40)
        account.load("c", 5)
        account.need("b", 15)
        account.footprint("a", 60)
        assert account.decide(LATER) == [recalls("b", 35)]
        account.obey([recalls("b", 35)])
        account.footprint("a", 100)
        assert account.decide(LATER) == [Evict("c", None, busy=False), recalls("b", 10)]
        account.obey([recalls("b", 10)])
        account.gone("c")
        assert account.decide(LATER + OVERGROWN_S - 0.1) == []
        replaced = Replace("a", 100 * UNIT, 50 * UNIT)
        assert account.decide(LATER + OVERGROWN_S) == [replaced]
        assert account.decide(LATER + OVERGROWN_S) == []

    def test_its_own_loans_go_first(self) -> None:
        account = Account()
        account.load("b", 10, busy=True, used=40, last_used=1)
        account.load("a", 10, busy=True, used=60, last_used=2)
        account.footprint("a", 70)
        assert account.decide(LATER) == [recalls("a", 50)]

    def test_worker_that_shrinks_is_not_replaced(self) -> None:
        account = Account()
        account.load("a", 50, busy=True)
        account.load("b", 50, busy=True)
        account.footprint("a", 60)
        assert account.decide(LATER) == []
        account.footprint("a", 50)
        assert account.decide(LATER + 9) == []
        account.footprint("a", 60)
        assert account.decide(LATER + 9) == []
        assert account.decide(LATER + 9 + OVERGROWN_S - 0.1) == []
        assert account.decide(LATER + 9 + OVERGROWN_S) == [Replace("a", 60 * UNIT, 50 * UNIT)]

    def test_overgrown_workers_are_replaced_one_at_a_time(self) -> None:
        account = Account()
        for name, last_used in (("b", 2), ("a", 1)):
            account.load(name, 50, busy=True, last_used=last_used)
        account.footprint("a", 60)
        account.footprint("b", 60)
        account.decide(LATER)
        assert account.decide(LATER + OVERGROWN_S) == [Replace("a", 60 * UNIT, 50 * UNIT)]

    def test_worker_that_outgrows_its_load_is_replaced_before_busy_models_go(self) -> None:
        account = Account()
        account.load("a", 50, busy=True)
        account.load("c", 5)
        account.claim("b", 20)
        assert account.decide(LATER) == [admits("b", 20)]
        account.footprint("b", 40)
        assert account.decide(LATER) == []
        account.footprint("b", 60)
        assert account.decide(LATER) == [Evict("c", None, busy=False)]
        account.gone("c")
        assert account.decide(LATER + OVERGROWN_S - 0.1) == []
        assert account.decide(LATER + OVERGROWN_S) == [Replace("b", 60 * UNIT, 20 * UNIT)]

    def test_a_limit_that_followed_is_where_the_next_growth_counts_from(self) -> None:
        account = Account()
        account.load("a", 50, busy=True)
        account.load("b", 30, busy=True)
        account.footprint("a", 75)
        assert account.decide(LATER) == []
        account.gone("b")
        assert account.decide(LATER + 5) == [lends("a", 75)]
        account.load("c", 25, busy=True, at=LATER + 6)
        account.footprint("a", 80)
        assert account.decide(LATER + 6 + OVERGROWN_S) == [recalls("a", 70)]

    def test_claim_sees_no_room_in_what_a_worker_has_outgrown(self) -> None:
        account = Account()
        account.load("a", 40, busy=True, used=50, wanted=50)
        account.footprint("a", 60)
        account.claim("b", 55)
        assert account.decide(LATER) == [lends("a", 60)], "a recall would bring 10 of the 15"
        assert account.decide(LATER) == []

    def test_worker_over_its_limit_first_gets_time_for_a_recall(self) -> None:
        account = TestRecalls.recalled(answered=80)
        account.footprint("a", 105)
        account.decide(LATER + 1)
        allocation = account.ledger.allocation("a")
        assert allocation is not None
        assert allocation.overgrown_since is None


class TestAnotherBudget:
    def test_the_spare_goes_first_then_as_little_as_it_takes(self) -> None:
        account = Account(spare=5)
        account.decide(0.0)
        account.load("lender", 10, busy=True, used=12, wanted=20)
        account.load("large", 50, busy=True)
        account.load("idle", 15)
        account.need("lender", 12)
        assert account.ledger.spare_bytes == 5 * UNIT

        def shrink(budget: int) -> list[object]:
            account.configure(budget * UNIT, PATIENCE_S, 5 * UNIT)
            return list(account.decide(LATER))

        assert shrink(89) == []
        assert account.ledger.spare_bytes == 0
        assert shrink(80) == [recalls("lender", 15)]
        account.obey([recalls("lender", 15)])
        assert shrink(76) == [recalls("lender", 12), Evict("idle", None, busy=False)]
        account.obey([recalls("lender", 12)])
        account.gone("idle")
        assert shrink(61) == [recalls("lender", 11)], "a running sequence is next"
        account.obey([recalls("lender", 11)])
        assert shrink(55) == [Evict("lender", None, busy=True)], "a busy one if nothing is left"

    def test_pinned_models_stay_whatever_it_is(self) -> None:
        account = Account()
        account.load("a", 50, busy=True, pinned=True)
        account.configure(40 * UNIT, PATIENCE_S, 0)
        assert account.decide(LATER) == []
        assert account.ledger.possible_bytes == -10 * UNIT

    def test_stranded_memory_is_nobodys(self) -> None:
        account = Account()
        account.load("a", 50)
        account.ledger.stranded_bytes = 60 * UNIT
        assert account.decide(LATER) == [Evict("a", None, busy=False)]

    def test_patience_may_change(self) -> None:
        account = Account()
        account.load("a", 80, busy=True)
        account.claim("b", 40)
        account.configure(100 * UNIT, 4.0, 0)
        assert account.decide(LATER + 3.9) == []
        assert account.decide(LATER + 4) == [Evict("a", "b", busy=True)]


class TestPressure:
    def test_idle_loans_go_back_and_then_idle_models(self) -> None:
        account = Account()
        account.load("dear", 10, priority=1, last_used=1)
        account.load("new", 10, last_used=3)
        account.load("old", 10, last_used=2)
        account.load("busy", 10, busy=True, used=20, wanted=40)
        account.need("busy", 20)
        assert account.relieve(LATER, all_idle=False) == [recalls("busy", 20)]
        for name in ("old", "new", "dear"):
            assert account.relieve(LATER, all_idle=False) == [Evict(name, None, busy=False)]
        assert account.relieve(LATER, all_idle=False) == []

    def test_in_a_critical_one_all_at_once(self) -> None:
        account = Account()
        account.load("busy", 10, busy=True, used=20, wanted=40)
        account.need("busy", 20)
        for name, priority, last_used in (("a", 0, 2), ("b", 1, 1), ("c", 0, 1)):
            account.load(name, 10, priority=priority, last_used=last_used)
        account.load("pinned", 10, pinned=True)
        assert account.relieve(LATER, all_idle=True) == [
            recalls("busy", 20),
            *(Evict(name, None, busy=False) for name in ("c", "a", "b")),
        ]
        assert account.relieve(LATER, all_idle=True) == []

    def test_noise_is_no_loan(self) -> None:
        account = Account()
        account.load("a", 10)
        account.record_need("a", MemoryNeed(0, 10 * UNIT + UNIT // 2, 0), 10 * UNIT)
        account.decide(LATER)
        assert account.limit("a") == 10.5
        account.record_need("a", MemoryNeed(), int(10.5 * UNIT))
        assert account.relieve(LATER, all_idle=False) == [Evict("a", None, busy=False)]


class TestLoans:
    def test_unclaimed_memory_is_lent(self) -> None:
        account = Account()
        account.load("a", 10, busy=True, used=10, wanted=10)
        account.load("b", 10, busy=True, used=10, wanted=10)
        account.need("a", 10, 40)
        assert account.decide(LATER) == [lends("a", 40)]
        account.need("b", 10, 80)
        assert account.decide(LATER) == [lends("b", 60)]

    def test_bytes_beside_the_account_raise_the_need(self) -> None:
        """A limit that counts it may come before the worker has to put rows aside for it."""
        account = Account()
        account.load("a", 10, busy=True, used=40, wanted=50, least=20)
        account.grow_beside("a", 5)
        assert account.decide(LATER) == [LimitChange("a", 55 * UNIT, recall=False)]
        allocation = account.ledger.allocation("a")
        assert allocation is not None
        assert allocation.need == MemoryNeed(45 * UNIT, 55 * UNIT, 25 * UNIT)
        account.grow_beside("a", -60)
        assert allocation.need == MemoryNeed(0, 0, 0)
        account.grow_beside("a", 5)
        assert allocation.need == MemoryNeed(0, 0, 0), "it has nothing to do"
        account.grow_beside("nobody", 5)

    def test_claimed_memory_is_not_lent(self) -> None:
        account = Account()
        account.load("a", 10, busy=True)
        account.load("idle", 40)
        account.claim("new", 80)
        account.need("a", 10, 100)
        assert account.decide(LATER) == [Evict("idle", "new", busy=False)]

    def test_a_model_that_loads_or_ends_borrows_nothing(self) -> None:
        account = Account()
        account.claim("a", 10)
        account.decide(LATER)
        account.need("a", 10, 50)
        assert account.decide(LATER) == []
        account.ready("a", LATER)
        account.record_use("a", priority=0, busy=True, last_used=LATER)
        assert account.decide(LATER) == [lends("a", 50)]
        account.ending("a")
        account.need("a", 10, 60)
        assert account.decide(LATER) == []

    def test_unused_ones_stay_as_long_as_nobody_needs_them(self) -> None:
        account = Account()
        account.load("a", 10, busy=True, used=30, wanted=60)
        account.need("a", 0)
        account.record_use("a", priority=0, busy=False, last_used=LATER)
        assert account.decide(LATER + 1000.0) == []

    def test_a_spare_gets_what_has_stood_idle_for_a_while(self) -> None:
        account = Account(spare=5)
        account.load("a", 10, busy=True)
        account.need("a", 0, 100, 100)
        account.obey(account.decide(LATER))
        assert (account.limit("a"), account.ledger.spare_bytes) == (100, 0)
        account.need("a", 0, cache=88)
        account.record_use("a", priority=0, busy=False, last_used=LATER)
        assert account.decide(LATER + IDLE_LOAN_S - 0.1) == []
        assert account.decide(LATER + IDLE_LOAN_S) == [recalls("a", 98)], "its cache stays"
        account.need("a", 0, cache=50)
        assert account.decide(LATER + IDLE_LOAN_S) == [recalls("a", 95)], "no more than it takes"
        account.obey([recalls("a", 95)])
        assert account.decide(LATER + IDLE_LOAN_S) == []
        assert account.ledger.spare_bytes == 5 * UNIT

    def test_two_that_want_all_settle_and_share(self) -> None:
        account = Account()
        account.load("a", 10, busy=True, used=50, wanted=90)
        account.load("b", 10, busy=True)
        assert account.limit("a") == 90
        changed_at = []
        for tenth in range(3000):
            now = LATER + tenth / 10
            for name in ("a", "b"):
                account.need(name, int(account.limit(name)), 95, 10)
            decided = account.decide(now)
            account.obey(decided)
            for name in ("a", "b"):
                account.footprint(name, account.limit(name))
            changed_at += [now] * len(decided)
        assert changed_at[-1] <= LATER + REBALANCE_S + 1, "limits change without end"
        assert (account.limit("a"), account.limit("b")) == (50, 50)
        account.need("b", 0)
        account.record_use("b", priority=0, busy=False, last_used=now)
        for _ in range(3):
            account.obey(account.decide(now))
            account.footprint("b", 10)
        assert (account.limit("a"), account.limit("b")) == (90, 10)

    def test_a_higher_priority_has_first_what_it_wants(self) -> None:
        account = Account()
        account.load("low", 10, busy=True, used=90)
        account.load("high", 10, priority=1, busy=True, used=10)
        account.need("high", 10, 70)
        assert account.decide(LATER) == [recalls("low", 30)]
        account.obey([recalls("low", 30)])
        account.footprint("low", 30)
        assert account.decide(LATER) == [lends("high", 70)]

    def test_rows_change_hands_only_now_and_then_and_where_it_is_worth_it(self) -> None:
        account = Account()
        account.load("a", 10, busy=True, used=60)
        account.load("b", 10, busy=True, used=40)
        account.need("a", 60, 95)
        account.need("b", 40, 95)
        assert account.decide(LATER) == [], "three quarters of the share"
        account.load("c", 0, busy=True)
        account.need("c", 0, 20)
        assert account.decide(LATER) == [recalls("a", 40)]
        account.obey([recalls("a", 40)])
        account.footprint("a", 40)
        account.need("a", 40, 95)
        assert account.decide(LATER) == [lends("c", 20)]

    @staticmethod
    def three(*, priority: int = 0, beside: int = 0) -> Account:
        """22 are free; "c" has borrowed 50, and "a" and "b" want 30 each; so much is ending."""
        account = Account(budget=102 + beside)
        if beside:
            account.load("ends", beside)
        account.load("c", 10, busy=True, used=60)
        account.load("a", 10, busy=True)
        account.load("b", 10, busy=True, priority=priority)
        account.need("a", 0, 40)
        account.need("b", 0, 40)
        if beside:
            account.ending("ends")
        return account

    def test_free_memory_is_lent_once_and_the_rest_recalled(self) -> None:
        account = self.three()
        assert account.decide(LATER) == [lends("a", 32), recalls("c", 36)]
        assert account.free == 0

    def test_a_higher_priority_is_lent_what_is_free(self) -> None:
        account = self.three(priority=1)
        assert account.decide(LATER) == [lends("b", 32), recalls("c", 31)]

    def test_unclaimed_coming_bytes_are_not_recalled_as_well(self) -> None:
        assert self.three(beside=38).decide(LATER) == [lends("a", 32)]
        assert self.three(beside=24).decide(LATER) == [lends("a", 32), recalls("c", 46)]
        assert self.three(beside=3).decide(LATER) == [lends("a", 32), recalls("c", 38)]

    def test_rows_are_called_back_at_a_distance_and_idle_loans_at_once(self) -> None:
        account = Account()
        account.load("low", 10, busy=True, used=90)
        account.load("high", 10, busy=True, priority=1)

        def turn(now: float, low: int, used: int, wanted: int) -> list[object]:
            account.need("low", low, 90)
            account.footprint("low", low)
            account.need("high", used, wanted)
            decided = account.decide(now)
            account.obey(decided)
            return list(decided)

        assert turn(LATER, 90, 0, 40) == [recalls("low", 60)]
        assert turn(LATER, 60, 0, 40) == [lends("high", 40)]
        soon = LATER + REBALANCE_S - 0.1
        assert turn(soon, 55, 40, 60) == [recalls("low", 55)]
        assert turn(soon, 55, 40, 60) == [lends("high", 45)]
        assert turn(soon, 55, 40, 60) == []
        assert turn(LATER + REBALANCE_S, 55, 40, 60) == [recalls("low", 40)]
        assert turn(LATER + REBALANCE_S, 40, 40, 60) == [lends("high", 60)]
        assert turn(LATER + REBALANCE_S, 40, 60, 80) == []
        assert turn(LATER + 2 * REBALANCE_S, 40, 60, 80) == [recalls("low", 20)]

    def test_of_several_lenders_each_gives_what_it_has_above_its_share(self) -> None:
        account = Account(budget=90)
        account.load("a", 10, busy=True, used=35)
        account.load("b", 10, busy=True, used=45)
        account.load("c", 10, busy=True, priority=1)
        account.need("c", 0, 60)
        assert account.decide(LATER) == [recalls("a", 15), recalls("b", 15)]


class TestStarvation:
    """A model is loaded, and its next sequence needs more than it has."""

    def test_it_takes_nothing_from_itself(self) -> None:
        account = Account()
        account.load("other", 40, busy=True, reload_s=1000.0)
        account.load("dry", 40, busy=True, used=60)
        account.need("dry", 60, 70, 70)
        assert account.decide(LATER) == []
        assert account.decide(LATER + PATIENCE_S) == []

    def test_it_waits_from_when_it_was_thirsty_last(self) -> None:
        account = Account()
        account.load("other", 40, busy=True, reload_s=1000.0)
        account.load("dry", 40, busy=True)
        for least, since in ((70, 0.0), (40, None), (70, 9.0)):
            account.need("dry", 0, least, least)
            account.decide(LATER + (since or 0.0))
            allocation = account.ledger.allocation("dry")
            assert allocation is not None
            assert allocation.starved_since == (None if since is None else LATER + since)

    def test_starvation_of_a_new_model_counts_from_its_claim(self) -> None:
        for ready_at, since in ((LATER, 3.0), (LATER - 2.4, 3.0), (LATER - 2.5, LATER)):
            account = Account()
            account.load("other", 40, busy=True, reload_s=1000.0)
            account.load("dry", 40, busy=True, at=3.0)
            account.ready("dry", ready_at)
            account.need("dry", 0, 70, 70)
            account.decide(LATER)
            allocation = account.ledger.allocation("dry")
            assert allocation is not None
            assert allocation.starved_since == since

    def test_it_waits_behind_those_that_it_gives_back_to(self) -> None:
        account = Account()
        account.load("dry", 40, busy=True, used=60)
        account.claim("new", 60)
        assert account.decide(LATER) == [recalls("dry", 40)]
        account.need("dry", 60, 60, 60)
        assert account.decide(LATER) == []
        account.obey([recalls("dry", 40)])
        account.footprint("dry", 40)
        assert account.decide(LATER) == [admits("new", 60)]

    def test_it_keeps_what_it_was_to_give_back_once_nobody_waits_for_that(self) -> None:
        account = Account()
        account.load("dry", 40, busy=True, used=60)
        account.load("other", 40, busy=True)
        account.claim("new", 20)
        assert account.decide(LATER) == [recalls("dry", 40)]
        account.withdraw("new")
        account.need("dry", 60, 60, 60)
        assert account.decide(LATER) == [lends("dry", 60)]

    def test_of_two_in_each_others_way_one_keeps_its_place(self) -> None:
        account = Account()
        for name in ("a", "b"):
            account.load(name, 50, busy=True)
        for name in ("a", "b"):
            account.need(name, 0, 80, 80)
        now = LATER + PATIENCE_S
        account.decide(LATER)
        assert account.decide(now) == [Evict("b", "a", busy=True)]
        allocation = account.ledger.allocation("a")
        assert allocation is not None
        assert allocation.protected_at == now

    def test_model_is_protected_from_the_grant_of_its_claim(self) -> None:
        account = Account()
        account.load("dry", 40, busy=True)
        account.need("dry", 0, 60, 60)
        assert account.decide(LATER) == [lends("dry", 60)]
        account.obey([lends("dry", 60)])
        account.claim("new", 80, priority=1)
        assert account.decide(LATER + 2.4) == []
        assert account.decide(LATER + 2.5) == [Evict("dry", "new", busy=True)]

    def test_it_waits_its_turn_like_a_load(self) -> None:
        account = Account()
        account.load("idle", 50)
        account.load("dry", 40, busy=True)
        account.need("dry", 0, 60, 60)
        assert account.decide(LATER) == [Evict("idle", "dry", busy=False)]
        assert account.decide(LATER) == []
        account.gone("idle")
        assert account.decide(LATER) == [lends("dry", 60)]

    def test_rows_of_equals_wait_for_its_patience(self) -> None:
        account = Account()
        account.load("busy", 10, busy=True, used=30)
        account.load("dry", 70, busy=True)
        account.need("dry", 0, 90, 90)
        assert account.decide(LATER) == [recalls("busy", 20)], "its share, and that won't do"
        account.obey([recalls("busy", 20)])
        account.footprint("busy", 20)
        account.need("busy", 20, 30, 20)
        account.obey(account.decide(LATER))
        assert account.limit("dry") == 80
        assert account.decide(LATER + PATIENCE_S - 0.1) == []
        assert account.decide(LATER + PATIENCE_S) == [recalls("busy", 10)]

    def test_rows_of_a_lower_priority_do_not(self) -> None:
        account = Account()
        account.load("busy", 10, busy=True, used=60)
        account.load("dry", 40, priority=1, busy=True)
        account.need("dry", 0, 60, 60)
        assert account.decide(LATER) == [recalls("busy", 40)]

    def test_more_than_there_is_it_does_not_wait_for(self) -> None:
        account = Account()
        account.load("dry", 40, busy=True)
        account.need("dry", 0, 200, 200)
        assert account.decide(LATER) == [lends("dry", 100)]

    def test_model_that_was_evicted_while_it_starved_asks_in_its_turn(self) -> None:
        account = Account()
        account.load("busy", 60, busy=True)
        account.load("dry", 40, busy=True)
        account.need("dry", 0, 60, 60)
        assert account.decide(LATER) == []
        account.gone("dry")
        account.claim("other", 40, now=LATER + 1)
        account.claim("dry", 40, now=LATER + 5)
        assert account.decide(LATER + 5) == [admits("dry", 40)]
        account.withdraw("dry")
        account.gone("dry")
        account.claim("dry", 40, now=LATER + 6)
        assert account.decide(LATER + 6) == [admits("other", 40)], "that was one turn"

    def test_a_turn_that_is_given_up_is_lost(self) -> None:
        account = Account()
        account.load("busy", 60, busy=True)
        account.load("dry", 40, busy=True)
        account.need("dry", 0, 60, 60)
        account.decide(LATER)
        account.gone("dry")
        account.withdraw("dry")
        account.claim("other", 40, now=LATER + 1)
        account.claim("dry", 40, now=LATER + 2)
        assert account.decide(LATER + 2) == [admits("other", 40)]

    def test_claim_of_a_protected_model_is_served_first(self) -> None:
        account = Account()
        account.load("pinned", 40, busy=True, pinned=True)
        account.load("dry", 40, busy=True, at=LATER)
        account.need("dry", 0, 60, 60)
        account.claim("new", 20, priority=9)
        assert account.decide(LATER) == [lends("dry", 60)]


class TestSpare:
    def test_it_has_what_nobody_else_needs(self) -> None:
        account = Account(spare=5)
        account.claim("a", 96)
        assert account.decide(LATER) == [admits("a", 96)]
        assert account.ledger.spare_bytes == 0
        account.gone("a")
        account.decide(LATER)
        assert account.ledger.spare_bytes == 5 * UNIT
        account.load("b", 95)
        assert (account.free, account.ledger.spare_bytes) == (0, 5 * UNIT)
        account.claim("c", 5)
        assert account.decide(LATER) == [admits("c", 5)]

    def test_it_stays_where_a_load_fits_beside_it(self) -> None:
        account = Account(spare=5)
        account.decide(LATER)
        account.claim("a", 95)
        account.decide(LATER)
        account.decide(LATER)
        assert (account.free, account.ledger.spare_bytes) == (0, 5 * UNIT)
        account.claim("b", 5)
        assert account.decide(LATER) == [admits("b", 5)]
        assert (account.free, account.ledger.spare_bytes) == (0, 0)

    def test_less_may_be_wanted(self) -> None:
        account = Account(spare=5)
        account.decide(LATER)
        account.configure(100 * UNIT, PATIENCE_S, 3 * UNIT)
        account.decide(LATER)
        assert account.ledger.spare_bytes == 3 * UNIT
        account.configure(100 * UNIT, PATIENCE_S, 0)
        account.decide(LATER)
        assert account.ledger.spare_bytes == 0


class TestAttainable:
    def test_pinned_floors_of_others_are_what_is_not(self) -> None:
        account = Account()
        assert account.ledger.attainable_bytes("a") is None
        account.load("a", 20)
        account.claim("b", 30, pinned=True)
        assert account.ledger.attainable_bytes("a") == 100 * UNIT
        account.decide(LATER)
        assert account.ledger.attainable_bytes("a") == 70 * UNIT, "it is loading"
        assert account.ledger.attainable_bytes("b") == 100 * UNIT
        account.ending("b")
        assert account.ledger.attainable_bytes("a") == 100 * UNIT
        account.configure(200 * UNIT, PATIENCE_S, 0)
        assert account.ledger.attainable_bytes("a") == 200 * UNIT

    def test_undecided_bytes_count_as_attainable(self) -> None:
        account = Account()
        account.load("a", 20)
        account.ledger.stranded_bytes, account.ledger.undecided_bytes = 30 * UNIT, 10 * UNIT
        assert account.ledger.attainable_bytes("a") == 80 * UNIT

    def test_claim_for_more_than_is_possible_does_not_wait(self) -> None:
        account = Account()
        account.load("pinned", 40, pinned=True)
        account.load("dry", 30, busy=True)
        account.need("dry", 0, 200, 200)
        assert account.decide(LATER) == [lends("dry", 60)]
        assert account.decide(LATER + 1) == []
        allocation = account.ledger.allocation("dry")
        assert allocation is not None
        assert allocation.starved_since is None
