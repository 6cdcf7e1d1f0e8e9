"""The process that stands in for the gateway that serves, and its channel to that gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gateway.server.upgrade.stand_in import STAND_IN, StandInChannel

pytestmark = pytest.mark.processes

_S = 60.0


@pytest.fixture
def served() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """Who stands in, and the end of the gateway that serves."""
    ours, its = socket.socketpair()
    ours.settimeout(_S)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", STAND_IN, str(its.fileno())],
        pass_fds=[its.fileno()],
        # As after an exec: what comes before it is there waits.
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]),
    )
    its.close()
    yield process, ours
    ours.close()
    process.kill()
    process.wait()


def test_it_hands_signals_on_and_ends_as_the_gateway_does(
    served: tuple[subprocess.Popen[bytes], socket.socket],
) -> None:
    process, gateway = served
    # Not a moment too early.
    process.send_signal(signal.SIGTERM)
    assert gateway.recv(1) == bytes([signal.SIGTERM])
    for number in (signal.SIGHUP, signal.SIGUSR2, signal.SIGINT):
        process.send_signal(number)
        assert gateway.recv(1) == bytes([number])
    gateway.send(bytes([0]))
    gateway.close()
    assert process.wait(_S) == 0


def test_a_gateway_that_says_nothing_has_crashed(
    served: tuple[subprocess.Popen[bytes], socket.socket],
) -> None:
    process, gateway = served
    gateway.close()
    assert process.wait(_S) == 1


def test_the_gateway_hears_its_end(
    served: tuple[subprocess.Popen[bytes], socket.socket],
) -> None:
    process, gateway = served
    os.kill(process.pid, signal.SIGKILL)
    assert gateway.recv(1) == b""


async def _heard(channel: StandInChannel, other: socket.socket, *numbers: int) -> list[int]:
    told: list[int] = []
    arrived = asyncio.Event()

    def signalled(number: int) -> None:
        told.append(number)
        arrived.set()

    channel.watch(signalled)
    other.send(bytes([*numbers, signal.SIGUSR1]))
    async with asyncio.timeout(60):
        while not told or told[-1] != signal.SIGUSR1:
            arrived.clear()
            await arrived.wait()
    channel.unwatch()
    return told[:-1]


async def test_the_same_by_two_ways() -> None:
    ours, other = socket.socketpair()
    channel = StandInChannel(ours)
    assert channel.admits(signal.SIGINT)
    assert await _heard(channel, other, signal.SIGINT, signal.SIGTERM) == [signal.SIGTERM]
    assert not channel.admits(signal.SIGTERM)
    assert channel.admits(signal.SIGHUP)
    ours.close()
    other.close()


async def test_who_stands_in_no_more_ends_this_gateway() -> None:
    ours, other = socket.socketpair()
    channel = StandInChannel(ours)
    told: asyncio.Queue[int] = asyncio.Queue()
    channel.watch(told.put_nowait)
    other.close()
    assert await asyncio.wait_for(told.get(), 60) == signal.SIGTERM
    channel.end(0)
    ours.close()
