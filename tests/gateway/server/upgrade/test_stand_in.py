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


def test_stand_in_sends_signals_on_and_ends_with_gateways_status(
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


def test_silent_end_of_gateway_gives_status_1(
    served: tuple[subprocess.Popen[bytes], socket.socket],
) -> None:
    process, gateway = served
    gateway.close()
    assert process.wait(_S) == 1


def test_end_of_stand_in_closes_channel(
    served: tuple[subprocess.Popen[bytes], socket.socket],
) -> None:
    process, gateway = served
    os.kill(process.pid, signal.SIGKILL)
    assert gateway.recv(1) == b""


async def _received(channel: StandInChannel, other: socket.socket, *numbers: int) -> list[int]:
    received: list[int] = []
    arrived = asyncio.Event()

    def signalled(number: int) -> None:
        received.append(number)
        arrived.set()

    channel.watch(signalled)
    other.send(bytes([*numbers, signal.SIGUSR1]))
    async with asyncio.timeout(60):
        while not received or received[-1] != signal.SIGUSR1:
            arrived.clear()
            await arrived.wait()
    channel.unwatch()
    return received[:-1]


async def test_same_signal_by_two_ways_counts_once() -> None:
    ours, other = socket.socketpair()
    channel = StandInChannel(ours)
    assert channel.admits(signal.SIGINT)
    assert await _received(channel, other, signal.SIGINT, signal.SIGTERM) == [signal.SIGTERM]
    assert not channel.admits(signal.SIGTERM)
    assert channel.admits(signal.SIGHUP)
    ours.close()
    other.close()


async def test_end_of_stand_in_counts_as_sigterm() -> None:
    ours, other = socket.socketpair()
    channel = StandInChannel(ours)
    numbers: asyncio.Queue[int] = asyncio.Queue()
    channel.watch(numbers.put_nowait)
    other.close()
    assert await asyncio.wait_for(numbers.get(), 60) == signal.SIGTERM
    channel.end(0)
    ours.close()
