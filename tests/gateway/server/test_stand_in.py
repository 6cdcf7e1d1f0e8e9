"""The process that everybody knows, once another one serves."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gateway.server.departure import STAND_IN

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
