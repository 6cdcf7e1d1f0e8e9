"""Deadlines of a gateway that sleeps and wakes."""

from __future__ import annotations

import asyncio

import pytest

from gateway.system.clock import LOOK_S, Countdown, Presence, Timer, until_set

HOUR_S = 3600.0


def test_look_in_time_counts_as_present() -> None:
    presence = Presence(0.0)
    assert [presence.absent_s(now) for now in (0.25, 1.25, 3.0, 8.0)] == [0.0] * 4
    assert presence.absent_s(8.0 + HOUR_S) == HOUR_S - LOOK_S
    assert presence.absent_s(8.25 + HOUR_S) == 0.0, "it is back"


def test_it_ends_in_time_if_nobody_sleeps() -> None:
    countdown = Countdown(10.0, 100.0)
    looks = [countdown.left_s(100.0 + index) for index in range(12)]
    assert looks == [10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0, 0.0]


def test_a_sleep_puts_it_off() -> None:
    countdown = Countdown(10.0, 0.0)
    for second in range(5):
        countdown.left_s(float(second))
    assert countdown.left_s(4.0 + HOUR_S) == pytest.approx(5.0)
    assert countdown.pause_s(4.5 + HOUR_S) == LOOK_S
    for second in range(1, 5):
        assert countdown.left_s(4.0 + HOUR_S + second) > 0.0
    assert countdown.left_s(9.0 + HOUR_S) == 0.0


def test_several_deadlines_keep_their_distances_over_a_sleep() -> None:
    countdowns = [Countdown(seconds, 0.0) for seconds in (3.0, 60.0, 600.0)]
    left = [countdown.left_s(HOUR_S) for countdown in countdowns]
    assert left == [pytest.approx(number - LOOK_S) for number in (3.0, 60.0, 600.0)]


def test_it_is_asked_again_just_when_it_ends() -> None:
    assert Countdown(0.3, 0.0).pause_s(0.0) == pytest.approx(0.3)
    assert Countdown(30.0, 0.0).pause_s(0.0) == LOOK_S


class SleepyLoop(asyncio.SelectorEventLoop):
    """Its clock can jump, as uvloop's does over a sleep of the machine."""

    slept_s = 0.0

    def time(self) -> float:
        return super().time() + self.slept_s


def test_a_wait_goes_on_after_the_wake() -> None:
    loop = SleepyLoop()

    async def wait_over_a_sleep() -> bool:
        ended = asyncio.Event()
        waiting = asyncio.create_task(until_set(ended, 30.0))
        await asyncio.sleep(0)
        loop.slept_s += HOUR_S
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done(), "nobody had a chance to be in time"
        ended.set()
        return await waiting

    try:
        assert loop.run_until_complete(wait_over_a_sleep())
        assert not loop.run_until_complete(until_set(asyncio.Event(), 0.01))
    finally:
        loop.close()


def test_a_timer_fires_once_and_not_at_the_wake() -> None:
    loop = SleepyLoop()
    fired = []

    async def sleep_and_wake() -> None:
        long, short = Timer(30.0, lambda: fired.append("long")), asyncio.Event()
        cancelled = Timer(0.01, lambda: fired.append("cancelled"))
        Timer(0.01, short.set)
        cancelled.cancel()
        loop.slept_s += HOUR_S
        async with asyncio.timeout(HOUR_S):
            await short.wait()
        await asyncio.sleep(LOOK_S * 1.5)
        assert 0.0 < long.left_s <= 30.0
        long.cancel()

    try:
        loop.run_until_complete(sleep_and_wake())
    finally:
        loop.close()
    assert fired == []
