"""No threads, no processes or no descriptors are left for a while: that costs what needs them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.faults import EAGER_SPARES, sitecustomize
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.limits import limited_user, no_descriptors, no_new_threads
from tests.support.shapes import DEMO
from tests.support.streams import Probe, open_stream

# How long a fault that comes back isn't said again.
SAID_AGAIN_S = 60
STORY = "Tell me a story."
LONG = {"max_tokens": 250, "ignore_eos": True, "temperature": 0.0}
CONFIG = """
[workers]
restart_limit = 0
backoff_limit = 1
backoff_first_s = 0.2
breaker_retry_s = 300.0
[models.demo]
path = "demo"
[models.other]
path = "demo"
"""


def _children(gateway: Gateway) -> set[int]:
    return {child.pid for child in psutil.Process(gateway.pid).children()}


def _zombies(gateway: Gateway) -> list[psutil.Process]:
    children = psutil.Process(gateway.pid).children()
    return [child for child in children if child.status() == psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_without_threads_models_go_on_and_no_other_is_loaded(
    start_gateway: Callable[..., Gateway],
) -> None:
    # Whether a file may be read is asked for the user, who has no configuration here.
    running = start_gateway(models=("demo", f"{DEMO}=other"), prefix=limited_user())
    running.load("demo")
    undisturbed = open_stream(running, STORY, **LONG).join().outcome
    stream = open_stream(running, STORY, **LONG)
    eventually(lambda: stream.text, START_S)
    with no_new_threads(running.pid), Probe(running, "/health") as health:
        for answer in (running.order("load", "other"), running.chat(STORY, "other")):
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (503, "model_unavailable")
            assert "no thread can be started" in error["message"]
            assert int(answer.headers["retry-after"]) > 0
        assert running.model("other")["state"] == "unloaded"
        assert stream.join().outcome == undisturbed
        # Neither what it holds nor what it has started can be looked at.
        assert running.order("kill", "demo").status_code == 200
        assert running.model("demo")["worker"] is None
        assert running.order("restart", "demo").status_code == 503
    assert not health.failures
    assert not _zombies(running)
    assert open_stream(running, STORY, "other", **LONG).join().outcome == undisturbed
    with no_new_threads(running.pid):
        assert running.stop() == 0, running.log


@pytest.mark.slow
def test_a_worker_whose_threads_can_not_be_started(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    """The shortage comes between the estimate and the start. Spares are concerned as well."""
    short = tmp_path / "short"
    code = f"""
import os, threading
start = threading.Thread.start
def fails(thread):
    if thread.name.endswith("-reaper") and os.path.exists({str(short)!r}):
        raise RuntimeError("can't start new thread")
    start(thread)
threading.Thread.start = fails
"""
    running = start_gateway(
        "--spare",
        "1",
        models=(),
        config=CONFIG,
        environment=sitecustomize(tmp_path / "s", EAGER_SPARES + code),
    )
    short.touch()
    eventually(
        lambda: any(event["change"] == "ready" for event in running.events("spare")), START_S
    )
    running.load("demo")
    for _ in range(2):
        answer = running.order("load", "other")
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (503, "model_unavailable")
        assert "can't start new thread" in error["message"]
    eventually(
        lambda: any(entry["change"] == "not started" for entry in running.events("spare")), START_S
    )
    model = running.model("other")
    assert model["state"] in ("backoff", "failed", "unloaded")
    assert model["worker"] is None
    waits = open_stream(running, STORY, "other", **LONG).join()
    assert (waits.status, "can't start new thread" in str(waits.error)) == (503, True)
    # What was begun of the last try is taken away after its answer.
    eventually(lambda: _children(running) == {running.worker_pid()}, START_S)
    eventually(lambda: len(list((running.state_dir / "run").iterdir())) == 1)
    eventually(lambda: len(list((running.state_dir / "workers").iterdir())) == 1)
    short.unlink()
    running.load("other")


@pytest.mark.slow
def test_without_descriptors_readings_stop_and_go_on(
    start_gateway: Callable[..., Gateway],
) -> None:
    running = start_gateway(models=(), config=CONFIG)
    pids = [running.load(text)["worker"]["pid"] for text in ("demo", "other")]
    eventually(lambda: running.status()["memory"]["footprint_bytes"])
    assert running.client.get("/health").json()["faults"] == []
    # It outlasts the next readings: where it ends, a descriptor is free.
    longer = {**LONG, "max_tokens": 1500}
    undisturbed = open_stream(running, STORY, **longer).join().outcome
    stream = open_stream(running, STORY, **longer)
    eventually(lambda: stream.text, START_S)
    # One that was idle for 5 s httpx would leave for another, which couldn't be had any more.
    running.client.get("/livez")
    began = time.monotonic()
    with no_descriptors(running.pid):
        health = eventually(lambda: (h := running.client.get("/health").json())["faults"] and h)
        assert health["status"] == "degraded"
        fault = health["faults"][0]
        assert fault["what"].startswith("readings: ")
        assert "Too many open files" in fault["reason"]
        assert abs(fault["at"] - time.time()) < 60
        # Its shutdown sequence must not need any.
        assert running.order("unload", "other").status_code == 200
        assert stream.join().outcome == undisturbed
    lasted_s = time.monotonic() - began
    assert running.model("other")["state"] == "unloaded"
    assert not psutil.pid_exists(pids[1])
    running.load("other")

    def measured() -> bool:
        memory, worker = running.status()["memory"], running.model("other")["worker"]
        return None not in (memory["footprint_bytes"], worker["footprint_bytes"])

    eventually(measured)
    said = running.log.count(fault["what"])
    assert 1 <= said <= 1 + lasted_s / SAID_AGAIN_S
