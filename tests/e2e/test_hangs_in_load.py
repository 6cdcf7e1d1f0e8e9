"""A worker that falls silent before it is ready is found by its heartbeat, as later."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import held_load, sitecustomize
from tests.support.gateway import START_S, Gateway, eventually

pytestmark = pytest.mark.slow

QUESTION = "Hello"
HEARTBEAT_TIMEOUT_S = 3.0


@pytest.fixture(scope="module")
def flag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No load goes on while it is there."""
    return tmp_path_factory.mktemp("held") / "flag"


@pytest.fixture(scope="module")
def gateway(flag: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    running = Gateway(
        "--spare",
        "1",
        config=f"[workers]\nheartbeat_timeout_s = {HEARTBEAT_TIMEOUT_S}\n",
        environment=sitecustomize(tmp_path_factory.mktemp("site"), held_load(flag)),
    )
    yield running
    assert running.stop() == 0, running.log


def _hung(gateway: Gateway) -> list[int]:
    return [event["pid"] for event in gateway.events("hang")]


def test_a_spare_that_is_stopped_just_before_it_is_adopted(gateway: Gateway) -> None:
    ready = eventually(
        lambda: [e for e in gateway.events("spare") if e["change"] == "ready"], START_S
    )
    pid = ready[-1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert gateway.say(QUESTION)
    assert pid in [event["pid"] for event in gateway.events("adopt")]
    assert pid in _hung(gateway)
    assert gateway.worker_pid() != pid


def test_a_worker_that_is_stopped_in_its_load(gateway: Gateway, flag: Path) -> None:
    gateway.order("unload")
    flag.touch()
    gateway.order("load", wait=False)
    eventually(lambda: gateway.model()["state"] == "loading", START_S)
    pid = gateway.worker_pid()
    os.kill(pid, signal.SIGSTOP)
    flag.unlink()
    assert gateway.say(QUESTION)
    assert pid in _hung(gateway)
    assert "heartbeat" in next(e["reason"] for e in gateway.events("exit") if e["pid"] == pid)


def test_a_slow_load_is_none(gateway: Gateway, flag: Path) -> None:
    """Its heart beats all the while."""
    gateway.order("unload")
    flag.touch()
    gateway.order("load", wait=False)
    eventually(lambda: gateway.model()["state"] == "loading", START_S)
    pid = gateway.worker_pid()
    time.sleep(HEARTBEAT_TIMEOUT_S + 1)
    assert gateway.model()["state"] == "loading"
    flag.unlink()
    assert gateway.say(QUESTION)
    assert gateway.worker_pid() == pid
