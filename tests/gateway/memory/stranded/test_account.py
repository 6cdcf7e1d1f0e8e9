"""What one worker is thought to have wired, a moment at a time: it holds 1,000, and wires 600."""

from __future__ import annotations

import pytest

from gateway.memory.stranded.account import Account, Claim

HELD = 1000
WIRED = 600


class Life:
    """Of one worker, read once a second."""

    def __init__(self, *, share: float = 1.0, keeps: bool = False) -> None:
        self.account = Account(7, "demo", 0.0, usual_share=share, usually_keeps=keeps)
        self.now = 0.0
        self.held = HELD

    def seconds(self, count: int, *, loads: bool = False, works: bool = False) -> None:
        for _ in range(count):
            self.now += 1.0
            self.account.observe(self.now, 1.0, self.held, loads=loads, works=works)
            self.account.settle(self.now)

    def load(self, seconds: int) -> None:
        self.seconds(seconds, loads=True, works=True)

    def compute(self, seconds: int) -> None:
        self.seconds(seconds, works=True)

    def rest(self, seconds: int) -> None:
        self.seconds(seconds)

    def fall(self, size: int) -> None:
        self.account.fall(self.now, size)

    @property
    def judged(self) -> bool:
        return self.account.claim(self.now).judged


def _grown(wired: int = WIRED, *, share: float = 1.0, keeps: bool = False) -> Life:
    """One that has computed for long enough to have wired what it wires."""
    life = Life(share=share, keeps=keeps)
    life.compute(2)
    life.account.climb(wired)
    life.compute(70)
    return life


def _swinging(back: int) -> Life:
    """One that unwired all when it stopped, and wired so much again when it went on."""
    life = _grown()
    life.rest(1)
    life.fall(WIRED)
    life.compute(1)
    life.account.climb(back)
    life.compute(5)
    return life


def test_one_that_was_not_read_yet_has_nothing() -> None:
    account = Account(7, "demo", 3.0)
    assert account.claim(3.0) == Claim("demo", 0, 0, 0, True, False, False, 0, 0)
    assert (account.expected_bytes, account.climbed_bytes, account.room_bytes) == (0, 0, 0)
    signs = (account.works, account.mixed, account.judged, account.swings, account.young)
    assert not any(signs)
    assert (account.since, account.changed_at, account.young_at) == (3.0, 3.0, 3.0)
    assert (account.ended_at, account.share) == (None, 0.0)
    account.climb(10)
    assert account.take_due(3.0, 10) == 0, "it has stopped nothing"


class TestYoung:
    def test_as_long_as_it_loads_and_then_until_it_has_computed(self) -> None:
        life = Life()
        life.load(100)
        assert life.account.young
        life.compute(9)
        assert life.account.young
        assert life.account.young_at == life.now
        life.compute(1)
        assert not life.account.young
        life.compute(1)
        assert life.account.young_at == life.now - 1
        life.load(1)
        assert life.account.young

    def test_for_a_minute_of_work(self) -> None:
        life = Life()
        life.compute(60)
        assert life.account.young
        life.compute(1)
        assert not life.account.young

    def test_not_at_rest(self) -> None:
        life = Life()
        life.load(3)
        life.rest(1)
        assert not life.account.young

    def test_it_may_wire_all_that_it_holds_and_later_what_it_had(self) -> None:
        life = Life()
        life.load(1)
        life.account.climb(WIRED)
        assert life.account.room_bytes == HELD - WIRED
        life = _grown()
        assert life.account.room_bytes == 0
        life.rest(1)
        life.fall(200)
        assert life.account.room_bytes == 200
        life.held = 500
        life.compute(1)
        assert life.account.room_bytes == 100
        life.held = 300
        life.compute(1)
        assert life.account.room_bytes == 0

    def test_at_rest_it_holds_no_less_than_it_had_wired(self) -> None:
        life = _grown()
        life.held = 100
        life.rest(1)
        assert life.account.held_bytes == WIRED


class TestWhatGoesOn:
    def test_it_should_wire_again_what_it_lost(self) -> None:
        life = _grown()
        life.rest(1)
        life.fall(500)
        life.compute(1)
        account = life.account
        assert (account.expected_bytes, account.climbed_bytes, account.missed_bytes) == (
            500,
            0,
            500,
        )
        account.climb(200)
        assert account.missed_bytes == 300
        account.climb(400)
        assert account.missed_bytes == 0

    def test_no_more_than_it_usually_does(self) -> None:
        life = _swinging(400)
        life.rest(1)
        life.fall(400)
        life.compute(1)
        assert life.account.expected_bytes == 400
        life.account.climb(400)
        life.rest(1)
        life.fall(100)
        life.compute(1)
        assert life.account.expected_bytes == WIRED - 300

    @pytest.mark.parametrize(("seconds", "expected"), [(5, WIRED), (6, 400)])
    def test_what_is_usual_is_known_after_a_while(self, seconds: int, expected: int) -> None:
        life = _grown()
        life.rest(1)
        life.fall(WIRED)
        life.compute(1)
        life.account.climb(400)
        life.compute(seconds - 2)
        life.rest(1)
        life.fall(WIRED)
        life.compute(1)
        assert life.account.expected_bytes == expected

    @pytest.mark.parametrize(("climbed", "swings"), [(500, True), (580, False)])
    def test_it_swings_if_it_wires_again_about_as_much_as_before(
        self, climbed: int, *, swings: bool
    ) -> None:
        life = _grown()
        life.rest(1)
        assert not life.account.swings
        life = _swinging(400)
        life.rest(1)
        life.fall(WIRED)
        life.compute(1)
        life.account.climb(climbed)
        life.rest(1)
        assert life.account.swings is swings

    def test_where_two_wired_at_once_it_has_another_chance_once_it_lost_all(self) -> None:
        for lost, another in ((419, False), (420, True)):
            life = _grown()
            life.account.mixed = True
            life.rest(1)
            life.fall(lost)
            life.compute(1)
            assert life.account.mixed is not another
            assert life.account.young is another
            assert life.account.most_bytes == (WIRED - lost if another else WIRED)

    def test_one_that_keeps_its_pages_at_rest_has_them_when_it_computes(self) -> None:
        for keeps, wired in ((True, WIRED), (False, 300)):
            life = _grown(keeps=keeps)
            life.rest(1)
            life.fall(300)
            life.compute(5)
            assert life.account.wired_bytes == 300
            life.compute(1)
            assert life.account.wired_bytes == wired
        life = _grown(keeps=True)
        life.held = 500
        life.compute(1)
        assert life.account.wired_bytes == 500


class TestFalls:
    def test_what_it_had_wired_since_it_went_on_is_its_own_as_it_stops(self) -> None:
        life = _grown()
        life.rest(1)
        life.compute(1)
        life.account.climb(100)
        life.rest(1)
        now, account = life.now, life.account
        assert [account.take_due(now + 5, 60) for _ in range(3)] == [60, 40, 0]
        assert account.wired_bytes == WIRED

    def test_not_for_long(self) -> None:
        life = _grown()
        life.rest(1)
        assert life.account.take_due(life.now + 5.1, 100) == 0
        assert life.account.take_due(life.now + 5, 100) == 100

    def test_all_of_it_as_it_ends(self) -> None:
        life = _grown()
        life.account.end(life.now)
        assert life.account.take_due(life.now + 60.1, 100) == 0
        assert life.account.take_due(life.now + 60, 2 * HELD) == WIRED
        assert life.account.wired_bytes == 0

    def test_any_fall_may_be_that_of_one_at_rest(self) -> None:
        life = _grown()
        life.rest(1)
        life.fall(100)
        assert life.account.wired_bytes == WIRED - 100
        life.fall(WIRED)
        assert life.account.wired_bytes == 0

    @pytest.mark.parametrize(("seconds", "left"), [(1, 500), (2, WIRED)])
    def test_what_fell_just_before_it_stopped_was_its_own(self, seconds: int, left: int) -> None:
        life = _grown()
        life.fall(100)
        life.compute(seconds - 1)
        life.rest(1)
        assert life.account.wired_bytes == left

    @pytest.mark.parametrize(("seconds", "left"), [(15, 500), (16, WIRED)])
    def test_or_some_time_before_it_ended(self, seconds: int, left: int) -> None:
        life = _grown()
        life.fall(100)
        life.compute(seconds)
        life.account.end(life.now)
        assert life.account.wired_bytes == left

    @pytest.mark.parametrize(("seconds", "left"), [(15, 450), (16, 550)])
    def test_of_several_those_that_are_not_too_old(self, seconds: int, left: int) -> None:
        life = _grown()
        life.fall(100)
        life.compute(seconds)
        life.fall(50)
        life.account.end(life.now)
        assert life.account.wired_bytes == left

    def test_each_counts_once_and_no_more_than_there_is(self) -> None:
        life = _grown()
        life.fall(100)
        life.rest(1)
        life.compute(1)
        life.account.end(life.now)
        assert life.account.wired_bytes == WIRED - 100
        life = _grown()
        life.fall(HELD)
        life.rest(1)
        assert life.account.wired_bytes == 0


class TestRests:
    def test_each_counts_once_it_was_long_enough(self) -> None:
        for fallen, counts in ((180, (1, 0)), (181, (0, 1))):
            life = _grown()
            life.rest(1)
            life.fall(fallen)
            life.rest(9)
            assert (life.account.rests_kept, life.account.rests_fallen) == (0, 0)
            life.rest(10)
            assert (life.account.rests_kept, life.account.rests_fallen) == counts

    def test_a_short_one_tells_nothing_later(self) -> None:
        life = _grown()
        life.rest(3)
        life.compute(20)
        life.rest(1)
        assert (life.account.rests_kept, life.account.rests_fallen) == (0, 0)

    @pytest.mark.parametrize(("wired", "kept"), [(249, 0), (250, 1)])
    def test_nor_does_that_of_one_that_had_little(self, wired: int, kept: int) -> None:
        life = _grown(wired)
        life.rest(11)
        assert life.account.rests_kept == kept

    @pytest.mark.parametrize(
        ("usually", "kept", "fallen", "keeps"),
        [
            (False, 0, 0, False),
            (False, 1, 0, False),
            (False, 2, 0, True),
            (False, 2, 1, False),
            (False, 3, 1, True),
            (True, 0, 2, True),
            (True, 0, 3, False),
            (True, 1, 3, True),
        ],
    )
    def test_who_keeps_its_pages_is_judged_at_rest(
        self, kept: int, fallen: int, *, usually: bool, keeps: bool
    ) -> None:
        life = _grown(keeps=usually)
        life.account.rests_kept, life.account.rests_fallen = kept, fallen
        assert life.judged
        life.rest(6)
        assert life.judged, "it may just have stopped"
        life.rest(1)
        assert life.judged is keeps


class TestUnclear:
    @pytest.mark.parametrize(("wired", "unclear"), [(449, True), (450, False)])
    def test_whose_the_pages_are_unless_it_has_all_that_it_usually_has(
        self, wired: int, *, unclear: bool
    ) -> None:
        life = _grown(wired, share=0.5)
        assert not life.account.unclear
        life.account.mixed = True
        assert life.account.unclear is unclear
        assert life.account.tells is life.judged is not unclear

    def test_without_other_lives_it_has_all_that_it_holds(self) -> None:
        account = Account(7, "demo", 0.0)
        account.observe(1.0, 0.0, HELD, loads=True, works=True)
        account.mixed = True
        account.climb(899)
        assert account.unclear
        account.climb(1)
        assert not account.unclear


class TestProof:
    """That it wires what it holds, and gives it back."""

    @pytest.mark.parametrize(("fallen", "proves"), [(420, True), (419, False)])
    def test_by_its_end(self, fallen: int, *, proves: bool) -> None:
        life = _swinging(WIRED)
        life.rest(1)
        life.account.end(life.now)
        life.fall(fallen)
        assert life.account.proves(life.now + 60) is proves
        assert not life.account.proves(life.now + 60.1)

    def test_by_its_first_rest(self) -> None:
        life = _grown()
        life.rest(1)
        assert not life.account.proves(life.now)
        life.fall(WIRED)
        assert life.account.proves(life.now)
        assert life.account.proves(life.now + 60)
        assert not life.account.proves(life.now + 61)
        life.compute(1)
        assert not life.account.proves(life.now), "it works"
        life = _swinging(WIRED)
        life.rest(1)
        life.fall(WIRED)
        assert not life.account.proves(life.now), "no later rest proves anything"

    @pytest.mark.parametrize(("wired", "proves"), [(249, False), (250, True)])
    def test_not_by_little(self, wired: int, *, proves: bool) -> None:
        life = _grown(wired)
        life.rest(1)
        life.fall(wired)
        assert life.account.proves(life.now) is proves

    def test_not_where_nobody_knows_whose_it_was(self) -> None:
        life = _grown()
        life.account.mixed = True
        life.rest(1)
        life.fall(WIRED)
        assert not life.account.proves(life.now)


class TestEnd:
    def test_one_that_worked(self) -> None:
        life = _grown(keeps=True)
        life.account.wired_bytes = 100
        life.held = 500
        life.account.held_bytes = 500
        life.account.end(life.now)
        account = life.account
        assert (account.works, account.judged, account.ended_at) == (False, True, life.now)
        assert account.wired_bytes == 500, "to compute it had wired all of it"

    def test_one_that_an_earlier_gateway_has_seen(self) -> None:
        claim = Claim("demo", HELD, WIRED, 500, True, False, True, 3, 1)
        account = Account.of_claim(claim, -1, 9.0)
        assert (account.pid, account.ended_at, account.judged) == (-1, 9.0, True)
        assert account.claim(9.0) == claim
        assert account.take_due(69.0, HELD) == 500
        unsure = claim._replace(judged=False, unclear=True, tells=False)
        account = Account.of_claim(unsure, -2, 9.0)
        assert (account.judged, account.unclear, account.tells) == (False, True, False)
