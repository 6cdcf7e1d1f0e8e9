"""What systemd is told, over a real datagram socket."""

from __future__ import annotations

import os
import re
import resource
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.system.systemd import Notifier
from tests.support.folders import short_folder


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, str]]:
    """A socket, and its address as systemd gives it."""
    if request.param == "abstract" and not Path("/proc/net/unix").exists():
        pytest.skip("only Linux has an abstract namespace")
    with (
        short_folder() as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver,
    ):
        address = f"{folder}/notify" if request.param == "path" else f"@{uuid.uuid4().hex}"
        receiver.bind(address.replace("@", "\0"))
        receiver.settimeout(10)
        yield receiver, address


def _received(receiver: socket.socket) -> list[str]:
    return receiver.recv(65536).decode().split("\n")


def test_states(listener: tuple[socket.socket, str]) -> None:
    receiver, address = listener
    notifier = Notifier(address)
    notifier.ready("Serves\non a port")
    assert _received(receiver) == ["READY=1", "STATUS=Serves on a port"]
    notifier.stopping("Drains")
    assert _received(receiver) == ["STOPPING=1", "STATUS=Drains"]
    before_us = time.monotonic_ns() // 1000
    notifier.reloading()
    state, stamp = _received(receiver)
    assert state == "RELOADING=1"
    told = re.fullmatch(r"MONOTONIC_USEC=(\d+)", stamp)
    assert told is not None
    assert before_us <= int(told[1]) <= time.monotonic_ns() // 1000


async def test_signs_of_life(listener: tuple[socket.socket, str]) -> None:
    receiver, address = listener
    environment = {
        "NOTIFY_SOCKET": address,
        "WATCHDOG_USEC": "100000",
        "WATCHDOG_PID": str(os.getpid()),
        "HOME": "/",
    }
    notifier = Notifier.from_environment(environment)
    assert environment == {"HOME": "/"}
    assert notifier.period_s == 0.05
    for _ in range(3):
        await notifier.sign_of_life()
        assert _received(receiver) == ["WATCHDOG=1"]


async def test_signs_of_life_go_on_without_descriptors(
    listener: tuple[socket.socket, str], caplog: pytest.LogCaptureFixture
) -> None:
    receiver, address = listener
    notifier = Notifier(address)
    notifier.ready("Serves")
    _received(receiver)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        await notifier.sign_of_life()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caplog.text == ""
    assert _received(receiver) == ["WATCHDOG=1"]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/none"},
        {"NOTIFY_SOCKET": "/none", "WATCHDOG_USEC": "0"},
        {"NOTIFY_SOCKET": "/none", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/none", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"},
    ],
)
def test_signs_of_life_only_if_wanted(environment: dict[str, str]) -> None:
    assert Notifier.from_environment(environment).period_s is None


def test_without_systemd_nothing_happens(caplog: pytest.LogCaptureFixture) -> None:
    Notifier().ready("Serves")
    assert caplog.text == ""


def test_missing_listener_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    Notifier("/no/such/socket").ready("Serves")
    assert "systemd isn't told 'READY=1'" in caplog.text


def test_a_full_socket_does_not_block(
    listener: tuple[socket.socket, str], caplog: pytest.LogCaptureFixture
) -> None:
    _, address = listener
    notifier = Notifier(address)
    for _ in range(10_000):
        notifier.stopping("Drains")
        if caplog.text:
            return
    raise AssertionError("the socket took it all")
