"""Calls that may hang: they share one thread, have a deadline and name what hangs, and the process
can end beside them.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from gateway.system.lane import HangsError, Lane
from tests.support.faults import no_threads

LONG_S = 30.0


def _threads(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


async def test_call_gives_result_or_error() -> None:
    lane = Lane("lane")
    assert await lane.run(lambda: 7, LONG_S, "it") == 7
    with pytest.raises(ZeroDivisionError):
        await lane.run(lambda: 1 // 0, LONG_S, "it")
    order: list[int] = []
    await asyncio.gather(*(lane.run(lambda n=n: order.append(n), LONG_S, "it") for n in range(20)))
    assert order == list(range(20))


async def test_hanging_call_has_one_thread_and_refuses_others_until_it_returns() -> None:
    lane, goes_on, done = Lane("hanging"), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    with pytest.raises(HangsError, match=r"the disk did not answer within 0\.05 s"):
        await lane.run(goes_on.wait, 0.05, "the disk")
    for _ in range(5):
        with pytest.raises(HangsError, match="the disk has not answered for"):
            await lane.run(goes_on.wait, LONG_S, "the disk")
    assert _threads("hanging") == 1
    lane.soon(lambda: loop.call_soon_threadsafe(done.set))
    goes_on.set()
    async with asyncio.timeout(LONG_S):
        await done.wait()
    assert await lane.run(lambda: 7, LONG_S, "the disk") == 7


async def test_a_call_that_nobody_waits_for_any_more_is_not_made() -> None:
    lane, goes_on, made = Lane("lane"), threading.Event(), []
    first = asyncio.create_task(lane.run(goes_on.wait, LONG_S, "it"))
    second = asyncio.create_task(lane.run(lambda: made.append(2), LONG_S, "it"))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    goes_on.set()
    assert await first
    await lane.run(lambda: made.append(3), LONG_S, "it")
    assert made == [3]


async def test_without_a_thread_there_is_an_error_and_later_an_answer() -> None:
    lane, made = Lane("lane"), []
    with no_threads():
        with pytest.raises(OSError, match="no thread can be started"):
            await lane.run(lambda: made.append(1), LONG_S, "it")
        lane.soon(lambda: made.append(2))
    await lane.run(lambda: made.append(3), LONG_S, "it")
    assert made == [2, 3]


@pytest.mark.processes
def test_a_process_ends_beside_a_call_that_hangs() -> None:
    code = """
import asyncio, threading, uvloop
from gateway.system.lane import Lane
async def main():
    try:
        await Lane("lane").run(threading.Event().wait, 0.05, "the disk")
    except OSError as error:
        print(error)
uvloop.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG_S
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "did not answer" in ended.stdout
