"""What fails inside the gateway is said, once in a while, and kept for /health."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from gateway.system.tasks import Faults, Tasks


def test_a_fault_is_said_once_a_minute_and_counted() -> None:
    faults = Faults()
    said = [faults.record("a loop", OSError("too many"), float(now)) for now in range(0, 130, 10)]
    assert said == [now % 60 == 0 for now in range(0, 130, 10)]
    (fault,) = faults.recent(130.0)
    assert (fault.what, fault.reason, fault.times, fault.at) == (
        "a loop",
        "OSError: too many",
        13,
        120.0,
    )
    assert faults.recent(121.0 + 600.0) == []
    assert faults.record("a loop", OSError("too many"), 1000.0)
    assert [fault.times for fault in faults.recent(1000.0)] == [1]


def test_each_kind_is_said_by_itself_and_they_are_bounded() -> None:
    faults = Faults()
    assert faults.record("a loop", OSError("x"), 0.0)
    assert faults.record("a loop", ValueError("x"), 0.0)
    assert faults.record("another", OSError("x"), 0.0)
    for number in range(1000):
        faults.record(f"task {number}", OSError("x" * 10_000), 1.0)
    assert len(faults.recent(1.0)) == 50
    assert max(len(fault.reason) for fault in faults.recent(1.0)) == 500


async def test_whatever_fails_on_the_loop_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    faults, tasks = Faults(), Tasks("owner")
    faults.watch(asyncio.get_running_loop())
    turns = 0
    enough = asyncio.Event()

    async def turn() -> None:
        nonlocal turns
        turns += 1
        if turns > 3:
            enough.set()
        raise OSError(f"turn {turns}")

    async def one() -> None:
        raise ValueError("by mistake")

    def callback() -> None:
        raise KeyError("in a callback")

    with caplog.at_level(logging.ERROR):
        tasks.repeat(turn, "loop", 0.0)
        tasks.start(one(), "one")
        tasks.attempt(lambda: 1 // 0, "step")
        asyncio.get_running_loop().call_soon(callback)
        async with asyncio.timeout(30):
            await enough.wait()
        await tasks.cancel_all()
    found = {fault.what: fault for fault in faults.recent(time.time())}
    assert set(found) == {
        "owner: loop failed",
        "owner: one failed",
        "owner: step failed",
        "a callback of the event loop",
    }
    assert found["owner: loop failed"].times >= 4, "it has gone on"
    assert caplog.text.count("owner: loop failed") == 1, "and was said once"
    assert "ValueError: by mistake" in caplog.text
