"""What the lives of a model have shown."""

from __future__ import annotations

import pytest

from gateway.memory.stranded.account import Account
from gateway.memory.stranded.habits import Habits, Shown

HELD = 1000


def _life(pid: int, wired: int, *, computed: int = 30, kept: int = 0, fallen: int = 0) -> Account:
    """One that loaded, computed for so many seconds, and rested so often."""
    account = Account(pid, "demo", 0.0)
    account.observe(0.0, 1.0, HELD, loads=True, works=True)
    account.climb(wired)
    for second in range(computed):
        account.observe(1.0 + second, 1.0, HELD, loads=False, works=True)
    account.rests_kept, account.rests_fallen = kept, fallen
    return account


def test_nothing_is_known_at_first() -> None:
    habits = Habits()
    assert (habits.share, habits.keeps, habits.unwires) == (1.0, False, False)
    assert habits.agree(_life(1, 300)), "nothing speaks against it"


def test_a_life_tells_once_it_has_computed_for_some_seconds() -> None:
    habits = Habits()
    habits.note(_life(1, 0, computed=4))
    assert habits.share == 1.0
    habits.note(_life(2, 300, computed=5))
    assert habits.share == pytest.approx(0.3)


def test_the_usual_share_is_that_of_most_lives_and_of_the_last_ones() -> None:
    habits = Habits()
    for pid, wired in enumerate((0, 900, 1000, 900)):
        habits.note(_life(pid, wired))
    assert habits.share == pytest.approx(0.9)
    for pid in range(8):
        habits.note(_life(10 + pid, 200))
    assert habits.share == pytest.approx(0.2)
    assert not habits.agree(_life(30, 900)), "the old ones are forgotten"


@pytest.mark.parametrize(
    ("others", "wired", "agrees"),
    [
        ((), 900, True),
        ((0,), 900, False),
        ((0, 0, 900), 900, False),
        ((0, 900), 900, True),
        ((850,), 900, True),
        ((700,), 900, False),
        # Of what it wired a part was not seen; that it wired is what matters.
        ((900, 900), 400, True),
    ],
)
def test_half_of_the_other_lives_must_have_wired_as_much(
    others: tuple[int, ...], wired: int, *, agrees: bool
) -> None:
    habits, life = Habits(), _life(99, wired)
    for pid, other in enumerate(others):
        habits.note(_life(pid, other))
    habits.note(life)
    assert habits.agree(life) is agrees


@pytest.mark.parametrize(
    ("kept", "fallen", "keeps", "unwires"),
    [
        (3, 0, False, False),
        (4, 0, True, False),
        (0, 3, False, False),
        (0, 4, False, True),
        (4, 1, False, False),
        (5, 1, True, False),
        (1, 4, False, False),
        (1, 5, False, True),
    ],
)
def test_it_keeps_or_unwires_at_rest_if_it_nearly_always_has(
    kept: int, fallen: int, *, keeps: bool, unwires: bool
) -> None:
    habits = Habits()
    habits.note(_life(1, 900, kept=kept))
    habits.note(_life(2, 900, fallen=fallen))
    assert (habits.keeps, habits.unwires) == (keeps, unwires)


@pytest.mark.parametrize(
    ("lives", "firm"),
    [
        ((), False),
        ((900, 900, 900), False),
        ((900, 900, 900, 900), True),
        ((900, 850, 900, 950), True),
        ((900, 900, 900, 900, 700), False),
        ((900, 900, 900, 900, 1100), False),
    ],
)
def test_a_share_is_firm_if_four_lives_agree_on_it(lives: tuple[int, ...], *, firm: bool) -> None:
    habits = Habits()
    for pid, wired in enumerate(lives):
        habits.note(_life(pid, wired))
    assert habits.firm is firm


def test_lives_that_just_agree() -> None:
    shares = (1.0, 1.0, 1.0, 0.75)
    assert not Habits(Shown("demo", shares, 0, 0)).firm
    shares = (0.1, 0.1, 0.1, 0.0)
    assert Habits(Shown("demo", shares, 0, 0)).firm
    assert Habits(Shown("demo", (0.0,), 0, 0)).agree(_life(7, 100))
    assert not Habits(Shown("demo", (0.0,), 0, 0)).agree(_life(7, 101))


def test_an_earlier_gateway_s_lives_count_as_others() -> None:
    shown = Shown("demo", (0.1, 0.2, 0.3), 4, 0)
    habits = Habits(shown)
    assert habits.shown("demo") == shown
    assert habits.share == pytest.approx(0.2)
    assert habits.keeps
    assert not habits.agree(_life(7, 900))
    assert habits.agree(_life(7, 200))
