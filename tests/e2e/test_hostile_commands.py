"""Servers of commands that break every rule: each ends in a clear error, or is borne."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from tests.support.commands import all_gone, guarded, hostile, serving
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.streams import open_stream

SILENCE_S = 2
CONFIG = "[workers]\nstall_timeout_s = 4\nrestart_limit = 1000\n"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    config = CONFIG + hostile("w", silence_s=SILENCE_S) + hostile("left", "--leave")
    with serving(config) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _loaded(gateway: Gateway) -> None:
    gateway.load("w")


def _ask(gateway: Gateway, how: str, **fields: Any) -> httpx.Response:
    return gateway.chat("hi", "w", how=how, **fields)


def _error(answer: httpx.Response) -> tuple[str, str]:
    error = answer.json()["error"]
    return error["code"], error["message"]


@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ("silent", "deadline_exceeded", "sent no answer within 2 s"),
        ("garbage", "bad_gateway", "that is no HTTP"),
        ("continue", "bad_gateway", "a head of more than 64 KiB"),
        ("head", "bad_gateway", "a head of more than 64 KiB"),
    ],
)
def test_an_answer_that_is_none_is_said(gateway: Gateway, how: str, code: str, told: str) -> None:
    pid = guarded(gateway, "w")[0].pid
    said, message = _error(_ask(gateway, how))
    assert said == code
    assert told in message
    assert _ask(gateway, "well").json() == {}
    assert guarded(gateway, "w")[0].pid == pid, "its health is good, so it stays"


def test_a_body_that_never_comes_is_cut(gateway: Gateway) -> None:
    with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message body"):
        _ask(gateway, "extension")
    assert _ask(gateway, "well").json() == {}


def test_a_body_that_never_ends_goes_on_until_its_client_leaves(gateway: Gateway) -> None:
    body = {"model": "w", "how": "drip"}
    with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        until = time.monotonic() + SILENCE_S * 1.5
        assert next(data for data in answer.iter_raw() if time.monotonic() > until)
    eventually(lambda: gateway.model("w")["active_requests"] == 0)


def test_an_event_that_never_ends_is_an_error(gateway: Gateway) -> None:
    stream = open_stream(gateway, "hi", model_id="w", how="event").join()
    assert stream.error is not None
    assert stream.error["code"] == "deadline_exceeded"
    assert "completed no event for 2 s" in stream.error["message"]
    assert _ask(gateway, "well").json() == {}


@pytest.mark.slow
def test_a_server_that_listens_no_longer_is_replaced(gateway: Gateway) -> None:
    before = guarded(gateway, "w")
    assert _ask(gateway, "deaf").json() == {}
    eventually(lambda: all_gone(before))
    eventually(lambda: _ask(gateway, "well").status_code == 200, START_S)
    assert gateway.model("w")["last_exit"]["reason"].startswith("no engine step")


@pytest.mark.slow
def test_a_server_that_stops_itself_is_replaced(gateway: Gateway) -> None:
    before = guarded(gateway, "w")
    code, message = _error(_ask(gateway, "stop"))
    assert code in ("deadline_exceeded", "bad_gateway"), message
    eventually(lambda: _ask(gateway, "well").status_code == 200, START_S)
    eventually(lambda: all_gone(before))


def test_two_hundred_children_end_with_their_server(gateway: Gateway) -> None:
    assert _ask(gateway, "breed").json() == {}
    processes = guarded(gateway, "w")
    assert len(processes) > 200
    assert _ask(gateway, "well").json() == {}
    gateway.order("unload", "w").raise_for_status()
    assert all_gone(processes)


def test_orphans_that_have_ended_are_reaped(gateway: Gateway) -> None:
    guard = psutil.Process(gateway.worker_pid("w"))
    assert _ask(gateway, "orphans").json() == {}
    eventually(lambda: len(guard.children()) == 1)


def test_output_without_lines_and_lines_without_output_are_bounded(gateway: Gateway) -> None:
    assert _ask(gateway, "blot").json() == {}
    assert _ask(gateway, "well").json() == {}
    text = next((gateway.state_dir / "logs").rglob("w.log")).read_text()
    assert len(text) < 4 << 20
    assert text.count("\n") < 20_000


def test_a_grandchild_that_listens_serves(gateway: Gateway) -> None:
    gateway.load("left")
    assert gateway.chat("hi", "left", how="well").json() == {}
    (server,) = guarded(gateway, "left")
    gateway.order("unload", "left").raise_for_status()
    assert all_gone([server])


@pytest.mark.slow
def test_a_server_that_is_never_healthy_is_given_up() -> None:
    ways = ("continue", "garbage", "stop")
    config = "[workers]\nload_timeout_s = 2\n"
    config += "".join(hostile(way, f"--health={way}") for way in ways)
    with serving(config) as gateway, ThreadPoolExecutor(len(ways)) as pool:
        for refused in pool.map(lambda item: gateway.chat("hi", item), ways):
            assert refused.status_code == 503, refused.text
            assert "was not loaded within 2 s" in refused.text
        eventually(lambda: not psutil.Process(gateway.pid).children(recursive=True))
