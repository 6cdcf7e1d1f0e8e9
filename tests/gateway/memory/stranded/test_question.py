"""What of a dead worker's 600 may have come back unseen. It ended at the 1000th second."""

from __future__ import annotations

import pytest

from gateway.memory.stranded.account import Account
from gateway.memory.stranded.habits import Habits, Shown
from gateway.memory.stranded.question import Question
from tests.gateway.memory.stranded.accounts import at_rest, computing, gone_on, loading

END = 1000.0
USUAL = Habits(Shown("demo", (0.6,) * 4, 0, 0))
UNWIRES = Habits(Shown("demo", (0.6,) * 4, 0, 5))


def _question(wired: int = 600) -> Question:
    dead = computing(9, at=END, wired=wired)
    dead.end(END)
    return Question(dead, END, 0, clean=False)


def _doubt(other: Account, habits: Habits = USUAL, now: float = END + 180.0) -> int:
    return _question().doubt(other, habits, now)


class TestDoubt:
    @pytest.mark.parametrize(("wired", "doubt"), [(0, 600), (450, 150), (700, 0)])
    def test_a_successor_may_wire_as_much_as_the_dead_one_did(self, wired: int, doubt: int) -> None:
        assert _doubt(loading(at=END, wired=wired)) == doubt

    @pytest.mark.parametrize(("wired", "doubt"), [(0, 300), (100, 200), (400, 0)])
    def test_another_model_what_it_usually_does(self, wired: int, doubt: int) -> None:
        habits = Habits(Shown("other", (0.3,), 0, 0))
        assert _doubt(loading(model="other", at=END, wired=wired), habits) == doubt

    @pytest.mark.parametrize(("seconds", "doubt"), [(-5.1, 0), (-5.0, 600), (5.0, 600)])
    def test_from_just_before_the_end_on(self, seconds: float, doubt: int) -> None:
        assert _doubt(loading(at=END + seconds)) == doubt

    @pytest.mark.parametrize(("seconds", "doubt"), [(9.9, 500), (10.0, 0), (60.0, 0)])
    def test_at_rest_it_would_have_fallen_where_the_model_unwires(
        self, seconds: float, doubt: int
    ) -> None:
        def other() -> Account:
            return at_rest(at=END + 60.0, wired=100)

        now = END + 60.0 + seconds
        assert _doubt(other(), UNWIRES, now) == doubt
        assert _doubt(other(), USUAL, now) == 500, "where it keeps what it has it would not"
        assert _doubt(loading(at=END, wired=100), UNWIRES, now) == 500, "nor while it works"

    @pytest.mark.parametrize(("seconds", "doubt"), [(-5.1, 0), (-5.0, 400), (5.0, 400)])
    def test_one_that_went_on_may_have_wired_again_what_it_lost(
        self, seconds: float, doubt: int
    ) -> None:
        assert _doubt(gone_on(at=END + seconds, wired=600, lost=400)) == doubt

    def test_one_that_computed_before_or_stops_after_has_wired_nothing(self) -> None:
        assert _doubt(computing(at=END - 10.0, wired=300)) == 0
        stopped = gone_on(at=END, wired=600, lost=400)
        stopped.observe(END + 20.0, 20.0, 1000, loads=False, works=False)
        stopped.settle(END + 20.0)
        assert _doubt(stopped) == 0


class TestOwed:
    """A fall of 200 and one of 100 were taken for those of a living worker."""

    @staticmethod
    def owed(other: Account | None, pid: int = 1) -> int:
        question = _question()
        question.owe(1, 200)
        question.owe(1, 100)
        return question.owed_by(other, pid)

    def test_until_it_has_wired_as_much_again(self) -> None:
        other = gone_on(at=END + 1.0, wired=600, lost=300)
        assert self.owed(other) == 300
        other.climb(200)
        assert self.owed(other) == 100
        other.climb(200)
        assert self.owed(other) == 0
        assert self.owed(other, pid=2) == 0, "of another nothing was taken"

    def test_what_it_wired_before_does_not_count(self) -> None:
        other = gone_on(at=END, wired=600, lost=300)
        other.climb(300)
        assert self.owed(other) == 300

    def test_nor_does_that_of_one_that_rests_or_has_ended(self) -> None:
        other = gone_on(at=END + 1.0, wired=600, lost=300)
        other.climb(300)
        other.observe(END + 9.0, 8.0, 1000, loads=False, works=False)
        other.settle(END + 9.0)
        assert self.owed(other) == 300
        assert self.owed(None) == 300


class TestSwap:
    """Its successor usually wires 600, and was seen to wire less."""

    @staticmethod
    def swapped(other: Account, habits: Habits = USUAL, wired: int = 600) -> int:
        question, before = _question(wired), other.wired_bytes
        question.swap(other, habits, 50)
        swapped = other.wired_bytes - before
        assert question.account.wired_bytes == wired - swapped
        return swapped

    @pytest.mark.parametrize(("seen", "swapped"), [(0, 600), (400, 200), (549, 51), (550, 0)])
    def test_what_the_successor_wired_unseen_came_back(self, seen: int, swapped: int) -> None:
        assert self.swapped(computing(at=END + 100.0, wired=seen)) == swapped

    def test_no_more_than_the_dead_one_had(self) -> None:
        assert self.swapped(computing(at=END + 100.0, wired=0), wired=500) == 500

    def test_only_by_a_successor(self) -> None:
        """One that was started after the end, of the same model, and computes."""
        assert self.swapped(computing(at=END + 99.0, wired=0)) == 0
        assert self.swapped(computing(model="other", at=END + 100.0, wired=0)) == 0
        assert self.swapped(loading(at=END)) == 0
        assert self.swapped(at_rest(at=END + 200.0, wired=0)) == 0

    def test_only_where_enough_lives_have_shown_what_is_usual(self) -> None:
        few = Habits(Shown("demo", (0.6,) * 3, 0, 0))
        assert self.swapped(computing(at=END + 100.0, wired=0), few) == 0


def test_three_tenths_may_be_in_doubt() -> None:
    assert _question().allowed_bytes == 180
