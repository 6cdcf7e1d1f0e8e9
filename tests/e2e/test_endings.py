"""The gateway's own end, orderly or not: nobody is left behind, nobody holds it up."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.faults import held_steps, sitecustomize
from tests.support.gateway import START_S, STOP_S, Gateway, chat_body, eventually, gone
from tests.support.streams import open_stream

STORY = "Tell me a story."
LONG = {"max_tokens": 3500, "ignore_eos": True}


def test_sigterm_drains_and_ends_with_status_0(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    held = tmp_path / "held"
    running = start_gateway(environment=sitecustomize(tmp_path / "site", held_steps(held)))
    whole = running.say(STORY, max_tokens=200)
    pid = running.worker_pid()
    held.touch()
    stream = open_stream(running, STORY, max_tokens=200)
    eventually(lambda: running.model()["active_requests"] == 1)
    running.process.send_signal(signal.SIGTERM)
    eventually(lambda: running.client.get("/readyz").status_code == 503)
    refused = running.chat("Hello")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    held.unlink()
    stream.join()
    assert stream.text == whole
    assert running.process.wait(STOP_S) == 0
    assert gone(pid)


@pytest.mark.slow
def test_a_second_signal_cuts_the_drain(start_gateway: Callable[..., Gateway]) -> None:
    running = start_gateway(config="[gateway]\ndrain_s = 300.0\n")
    running.load()
    stream = open_stream(running, STORY, max_tokens=4000, ignore_eos=True)
    eventually(lambda: stream.text, START_S)
    running.process.send_signal(signal.SIGTERM)
    eventually(lambda: running.client.get("/readyz").status_code == 503)
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(STOP_S) == 0
    assert stream.join().error["code"] == "shutting_down"


@pytest.mark.slow
def test_silent_clients_do_not_hold_it_up(start_gateway: Callable[..., Gateway]) -> None:
    """One follows logs for ever, one has stopped reading its stream."""
    running = start_gateway(config="[gateway]\ndrain_s = 1.0\n")
    running.load()
    following = threading.Event()

    def follow() -> None:
        with httpx.Client(timeout=60) as client:
            path = f"{running.url}/admin/v1/models/demo/logs?follow=1"
            with client.stream("GET", path) as answer:
                following.set()
                try:
                    for _ in answer.iter_bytes():
                        pass
                except httpx.HTTPError:
                    pass

    threading.Thread(target=follow, daemon=True).start()
    assert following.wait(STOP_S)
    with httpx.Client(timeout=60) as client:
        url = f"{running.url}/v1/chat/completions"
        with client.stream("POST", url, json=chat_body(STORY, stream=True, **LONG)):
            eventually(lambda: running.model()["active_requests"] == 1)
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(STOP_S) == 0


def test_a_stop_during_a_load(start_gateway: Callable[..., Gateway]) -> None:
    running = start_gateway()
    running.order("load", wait=False)
    pid = eventually(lambda: (running.model()["worker"] or {}).get("pid"))
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(STOP_S) == 0
    assert gone(pid)


def test_a_signal_at_the_very_end(start_gateway: Callable[..., Gateway], tmp_path: Path) -> None:
    """The process has done everything that it has to: its status is that of an orderly end."""
    late = """
    import atexit, os, signal
    if "serve" in sys.orig_argv:
        numbers = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
        atexit.register(lambda: [os.kill(os.getpid(), each) for each in numbers])
    """
    running = start_gateway(environment=sitecustomize(tmp_path, late))
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(STOP_S) == 0


def test_ending_without_an_order_is_not_called_ordered(
    start_gateway: Callable[..., Gateway],
) -> None:
    running = start_gateway(
        models=(),
        config='[models.demo]\npath = "demo"\npreload = true\n[models.other]\npath = "demo"',
    )
    eventually(lambda: running.model()["state"] == "ready", START_S)
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(STOP_S) == 0
    log = eventually(lambda: "Stopped" in running.log and running.log)
    assert "configuration: preload" in log
    assert "the gateway ends" in log
    assert "operator" not in log


@pytest.mark.slow
def test_ctrl_c_reaches_the_gateway_alone(start_gateway: Callable[..., Gateway]) -> None:
    running = start_gateway()
    pid = running.load()["worker"]["pid"]
    os.kill(pid, signal.SIGINT)
    assert running.say("Hello")
    assert running.worker_pid() == pid
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(STOP_S) == 0
