"""A stop in every state ends in order within the time that a service manager grants."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from gateway.service.definition import stop_s
from tests.support.faults import after_import, sitecustomize
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.streams import Stream, open_stream

DRAIN_S = 1.0
STORY = "Tell me a story."
LONG = {"max_tokens": 3500, "ignore_eos": True}

# A minute, from the moment on that the flag is there.
SLOW_LOAD = """
import os, time
original = module.load
def slow(*arguments, **options):
    if os.path.exists({flag!r}):
        time.sleep(60)
    return original(*arguments, **options)
module.load = slow
"""


@pytest.mark.parametrize(
    "state",
    [
        "16 streams",
        *(pytest.param(text, marks=pytest.mark.slow) for text in ("idle", "loading", "parked")),
    ],
)
def test_a_stop_ends_within_the_time_that_is_granted(
    start_gateway: Callable[..., Gateway],
    tmp_path: Path,
    tell: Callable[..., None],
    state: str,
) -> None:
    flag = tmp_path / "slow"
    code = after_import("worker.load.loading", SLOW_LOAD.format(flag=str(flag)))
    running = start_gateway(
        config=f"[gateway]\ndrain_s = {DRAIN_S}\n",
        environment=sitecustomize(tmp_path / "site", code),
    )
    streams = _enter(running, state, flag)
    assert _workers(running) != []
    began = time.monotonic()
    running.process.send_signal(signal.SIGTERM)
    try:
        status = running.process.wait(stop_s(DRAIN_S))
    except subprocess.TimeoutExpired:
        os.kill(running.pid, signal.SIGKILL)
        raise
    tell(seconds=f"{time.monotonic() - began:.1f}", granted_s=stop_s(DRAIN_S))
    assert status == 0
    if state in ("idle", "16 streams"):
        # A worker that is killed strands its memory; one that slept in its load had to be.
        assert "outlived=SIGTERM" not in running.log
    assert _workers(running) == []
    for stream in streams:
        assert stream.join().error["code"] == "shutting_down"


def _enter(running: Gateway, state: str, flag: Path) -> list[Stream]:
    """Bring the gateway there; returns what clients wait for."""
    if state == "loading":
        flag.touch()
        running.order("load", wait=False)
        eventually(lambda: running.model()["state"] == "loading", START_S)
        return []
    running.load()
    if state == "idle":
        return []
    streams = [open_stream(running, STORY, **LONG) for _ in range(16)]
    eventually(lambda: all(stream.text for stream in streams), START_S)
    if state == "parked":
        flag.touch()
        running.order("kill", wait=False)
        eventually(lambda: running.model()["state"] == "loading", START_S)
        assert running.model()["queue_depth"] == 16
    return streams


def _workers(running: Gateway) -> list[int]:
    """By the socket in their command line."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if f"{running.state_dir}/run/" in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.info["pid"])
    return found
