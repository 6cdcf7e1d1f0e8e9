"""A terminal's signal comes twice, and counts once."""

from __future__ import annotations

import asyncio
import signal
import socket

from gateway.server.departure import StandInChannel


async def _heard(keeper: StandInChannel, other: socket.socket, *numbers: int) -> list[int]:
    told: list[int] = []
    arrived = asyncio.Event()

    def signalled(number: int) -> None:
        told.append(number)
        arrived.set()

    keeper.watch(signalled)
    other.send(bytes([*numbers, signal.SIGUSR1]))
    async with asyncio.timeout(60):
        while not told or told[-1] != signal.SIGUSR1:
            arrived.clear()
            await arrived.wait()
    keeper.unwatch()
    return told[:-1]


async def test_the_same_by_two_ways() -> None:
    ours, other = socket.socketpair()
    keeper = StandInChannel(ours)
    assert keeper.admits(signal.SIGINT)
    assert await _heard(keeper, other, signal.SIGINT, signal.SIGTERM) == [signal.SIGTERM]
    assert not keeper.admits(signal.SIGTERM)
    assert keeper.admits(signal.SIGHUP)
    ours.close()
    other.close()


async def test_who_stands_in_no_more_ends_this_gateway() -> None:
    ours, other = socket.socketpair()
    keeper = StandInChannel(ours)
    told: asyncio.Queue[int] = asyncio.Queue()
    keeper.watch(told.put_nowait)
    other.close()
    assert await asyncio.wait_for(told.get(), 60) == signal.SIGTERM
    keeper.end(0)
    ours.close()
