"""Whose a rise of wired pages is."""

from __future__ import annotations

import pytest

from gateway.memory.stranded.account import Account
from gateway.memory.stranded.rises import take_rise
from tests.gateway.memory.stranded.accounts import at_rest, computing, gone_on, loading

STEP = 50


def _rise(size: int, *accounts: Account, usual: int = 1000, now: float = 0.0) -> int:
    """Returns what is nobody's."""
    return take_rise(accounts, now, size, lambda _account: usual, STEP)


def test_without_workers_it_is_nobodys() -> None:
    assert _rise(500) == 500


@pytest.mark.parametrize(("size", "wired"), [(200, 500), (300, 600), (500, 600)])
def test_one_that_goes_on_wires_what_it_lost(size: int, wired: int) -> None:
    account = gone_on(at=0.0, wired=600, lost=300)
    assert _rise(size, account) == size - (wired - 300)
    assert account.wired_bytes == wired
    assert not account.mixed


@pytest.mark.parametrize(("seconds", "foreign"), [(10.0, 0), (10.1, 300)])
def test_within_ten_seconds(seconds: float, foreign: int) -> None:
    assert _rise(300, gone_on(at=0.0, wired=600, lost=300), now=seconds) == foreign


def test_one_that_rests_wires_nothing() -> None:
    assert _rise(300, at_rest(at=0.0, wired=600, lost=300)) == 300


def test_who_goes_on_comes_before_who_loads() -> None:
    new, old = loading(1), gone_on(2, at=0.0, wired=600, lost=300)
    assert _rise(400, new, old) == 0
    assert (new.wired_bytes, old.wired_bytes) == (100, 600)
    assert [new.mixed, old.mixed] == [False, False]


@pytest.mark.parametrize(("size", "wired"), [(500, 500), (800, 800), (1000, 1000), (1300, 1000)])
def test_one_that_loads_may_wire_all_that_it_holds(size: int, wired: int) -> None:
    account = loading()
    assert _rise(size, account, usual=600) == size - wired
    assert account.wired_bytes == wired


def test_two_that_load_wire_what_they_usually_do_before_what_they_may() -> None:
    usual = {1: 600, 2: 200}
    for size, shares in ((400, (300, 100)), (800, (600, 200)), (1400, (800, 600))):
        large, small = loading(1), loading(2)
        assert take_rise([large, small], 0.0, size, lambda each: usual[each.pid], STEP) == 0
        assert (large.wired_bytes, small.wired_bytes) == shares


def test_who_has_more_than_usual_leaves_the_rise_to_the_other() -> None:
    full, new = loading(1, wired=800), loading(2)
    assert _rise(200, full, new, usual=600) == 0
    assert (full.wired_bytes, new.wired_bytes) == (800, 200)


def test_nobody_knows_how_much_is_whose_where_two_load_at_once() -> None:
    for size, mixed in ((50, False), (51, True)):
        pair = loading(1), loading(2)
        _rise(size, *pair)
        assert [each.mixed for each in pair] == [mixed, mixed]
    alone, beside = loading(1), computing(2, wired=600)
    _rise(500, alone, beside)
    assert [alone.mixed, beside.mixed] == [False, False]
    assert beside.wired_bytes == 600
