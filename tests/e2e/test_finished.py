"""What the operator is told of requests that have finished."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.support.chat_server import ChatServer
from tests.support.commands import table
from tests.support.gateway import START_S, Gateway, chat_body, eventually
from tests.support.streams import open_stream

SECRET = "the word that only this prompt has is xylophone"


@pytest.fixture(scope="module")
def chats() -> Iterator[ChatServer]:
    with ChatServer() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(chats: ChatServer) -> Iterator[Gateway]:
    served = table("served", memory="100MB")
    running = Gateway(config=chats.config + served)
    yield running
    running.stop()


def _finished(gateway: Gateway, name: str) -> dict[str, Any]:
    """It is told once its client has the whole answer, or a moment later."""

    def finished() -> dict[str, Any] | None:
        answer = gateway.client.get("/admin/v1/requests/finished").raise_for_status()
        assert "xylophone" not in answer.text, "texts are never kept"
        found = answer.json()["requests"]
        return next((item for item in found if item["id"] == name), None)

    found: dict[str, Any] = eventually(finished)
    return found


def _kinds(finished: dict[str, Any]) -> list[str]:
    """The kinds of its phases, which leave no gap between them."""
    phases = finished["phases"]
    for before, after in pairwise(phases):
        assert before["end_s"] == after["begin_s"]
    assert phases[-1]["end_s"] == pytest.approx(finished["seconds"], abs=0.01)
    return [phase["kind"] for phase in phases]


def _chat(gateway: Gateway, name: str, model: str = "demo", **fields: Any) -> int:
    body = chat_body(SECRET, model, **{"max_tokens": 8, **fields})
    headers = {"x-request-id": name}
    return gateway.client.post("/v1/chat/completions", json=body, headers=headers).status_code


def test_an_answer_that_waited_for_its_model(gateway: Gateway) -> None:
    gateway.order("unload").raise_for_status()
    before = gateway.client.get("/admin/v1/requests/finished?recent=0").json()["count"]
    assert _chat(gateway, "first") == 200
    finished = _finished(gateway, "first")
    assert _kinds(finished) == ["load", "queue", "prefill", "tokens"]
    named = {"model": "demo", "key": None, "status": 200, "outcome": "ok", "error": None}
    assert finished.items() >= named.items()
    assert finished["completion_tokens"] == 8
    assert finished["tokens_per_s"] > 0
    assert finished["queue_s"] < finished["first_token_s"]
    assert _chat(gateway, "second") == 200
    assert _kinds(_finished(gateway, "second")) == ["queue", "prefill", "tokens"]
    listing = gateway.client.get("/admin/v1/requests/finished?recent=1").json()
    assert [request["id"] for request in listing["requests"]] == ["second"]
    assert listing["count"] == before + 2, "only requests to models count"
    live = gateway.client.get("/admin/v1/live?follow=0").text
    assert f'"finished":{listing["count"]}' in live


def test_a_refused_request_has_its_sentence(gateway: Gateway) -> None:
    assert _chat(gateway, "unknown", "nobody") == 404
    finished = _finished(gateway, "unknown")
    named: dict[str, Any] = {
        "model": None,
        "status": 404,
        "outcome": "model_not_found",
        "phases": [],
    }
    assert finished.items() >= named.items()
    assert finished["error"].startswith("There is no model 'nobody'")
    assert finished["completion_tokens"] is None


def test_a_killed_worker_is_a_pause_in_an_answer(gateway: Gateway) -> None:
    stream = open_stream(
        gateway, SECRET, headers={"x-request-id": "killed"}, max_tokens=1000, ignore_eos=True
    )
    eventually(lambda: stream.text, START_S)
    os.kill(gateway.worker_pid(), signal.SIGKILL)
    assert stream.join().done
    finished = _finished(gateway, "killed")
    assert _kinds(finished)[-4:] == ["tokens", "parked", "resumed", "tokens"]
    assert finished["completion_tokens"] == 1000


def test_a_client_that_leaves_is_told(gateway: Gateway) -> None:
    body = chat_body(SECRET, stream=True, max_tokens=3000, ignore_eos=True)
    headers = {"x-request-id": "leaves"}
    with gateway.client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as left:
        next(left.iter_lines())
    finished = _finished(gateway, "leaves")
    assert (finished["outcome"], finished["error"]) == ("client_left", None)


def test_forwarded_request_is_recorded_with_its_known_fields(
    gateway: Gateway, chats: ChatServer
) -> None:
    chats.answer = "An answer from elsewhere."
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    assert _chat(gateway, "passed", "far/writer", **asked) == 200
    finished = _finished(gateway, "passed")
    assert _kinds(finished) == ["answer"]
    assert (finished["model"], finished["outcome"]) == ("far/writer", "ok")
    assert finished["prompt_tokens"] == 12
    assert finished["tokens_per_s"] is None
    assert _chat(gateway, "command", "served") == 200
    finished = _finished(gateway, "command")
    assert _kinds(finished) == ["load", "queue", "answer"]
    assert (finished["completion_tokens"], finished["outcome"]) == (2, "ok")
