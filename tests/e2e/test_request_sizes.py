"""Requests of a few bytes that name, repeat or keep many: what they become is counted first."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.edge import shortened
from tests.support.gateway import START_S, Gateway, chat_body, eventually
from tests.support.raw_http import HOST, connect, send

RESPONSES = "/v1/responses"
CHAT = "/v1/chat/completions"
# Nobody has an answer by then.
LONG = {"max_tokens": 3000, "ignore_eos": True}


@pytest.fixture(scope="module")
def gateway(own_gateway: Gateway) -> Gateway:
    return own_gateway


@pytest.fixture(scope="module")
def pid(gateway: Gateway) -> Iterator[int]:
    """No request here costs the model its worker."""
    gateway.load()
    pid = gateway.worker_pid()
    yield pid
    assert gateway.worker_pid() == pid


@pytest.fixture(scope="module")
def stored_id(gateway: Gateway, pid: int) -> str:
    """A response whose first item has 18 MB. It isn't made, and is there all the same."""
    body = {"model": "demo", "input": "a" * 18_000_000, "background": True}
    response_id: str = gateway.client.post(RESPONSES, json=body).raise_for_status().json()["id"]
    path = f"{RESPONSES}/{response_id}"
    eventually(lambda: gateway.client.get(path).json()["status"] == "failed", START_S)
    return response_id


def _asked(gateway: Gateway, stored_id: str, count: int) -> httpx.Response:
    reference = {"type": "item_reference", "id": f"msg_{stored_id.removeprefix('resp_')}0000"}
    body = {"model": "demo", "input": [reference] * count}
    return gateway.client.post(RESPONSES, json=body)


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 10, 10_000])
def test_item_named_often_is_counted_often(gateway: Gateway, stored_id: str, count: int) -> None:
    """Four are more than a worker is told at once, and ten more than one request may become."""
    answer = _asked(gateway, stored_id, count)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


def test_item_named_only_once_is_an_ordinary_prompt(gateway: Gateway, stored_id: str) -> None:
    answer = _asked(gateway, stored_id, 1)
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    unknown = gateway.client.post(
        RESPONSES, json={"model": "demo", "input": [{"type": "item_reference", "id": "msg_1"}]}
    )
    assert unknown.json()["error"]["param"] == "input[0].id"


@pytest.mark.slow
@pytest.mark.parametrize("headers", [{}, {"X-Mailbox": "keep"}])
def test_a_prompt_counts_for_each_of_its_answers(
    gateway: Gateway, pid: int, headers: dict[str, str]
) -> None:
    answer = gateway.chat("a" * 3_000_000, n=128, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert gateway.chat("Hi", n=128, max_tokens=1, headers=headers).status_code == 200


def test_a_count_beyond_the_context_costs_no_worker(gateway: Gateway, pid: int) -> None:
    body = {"model": "demo", "input": "one two three " * 20_000}
    counted = gateway.client.post(f"{RESPONSES}/input_tokens", json=body).raise_for_status()
    assert counted.json()["input_tokens"] > gateway.model()["context_tokens"]


@pytest.mark.slow
def test_dropped_items_are_not_stored(gateway: Gateway, pid: int) -> None:
    turns = [{"role": "user", "content": "one two three " * 300}] * 100
    turns.append({"role": "user", "content": "Hi"})
    body: dict[str, Any] = {"model": "demo", "input": turns, "truncation": "auto"}
    body["max_output_tokens"] = 1
    answer = gateway.client.post(RESPONSES, json=body).raise_for_status().json()
    path = f"{RESPONSES}/{answer['id']}/input_items?limit=100"
    items = gateway.client.get(path).json()["data"]
    assert 0 < len(items) < 50
    assert items[0]["content"][0]["text"] == "Hi"


@pytest.mark.slow
def test_departed_client_counts_while_its_answer_is_made(
    start_gateway: Any, tmp_path: Path
) -> None:
    """Else a client that comes and goes would fill the gateway with prompts."""
    gateway = start_gateway(
        environment=shortened(tmp_path / "site", seconds=60.0, bodies_bytes=4 << 20),
    )
    gateway.load()
    body = json.dumps(chat_body("a" * 1_500_000)).encode()

    def request_stored(name: str) -> None:
        head = f"X-Mailbox: keep\r\nX-Request-Id: {name}\r\nContent-Length: {len(body)}\r\n\r\n"
        with connect(gateway) as connection:
            send(connection, f"POST {CHAT} HTTP/1.1\r\n".encode() + HOST + head.encode() + body)
            path = f"{CHAT}/chatcmpl-{name}"
            eventually(lambda: gateway.client.get(path).status_code == 202, START_S)

    worker = psutil.Process(gateway.worker_pid())
    # No answer comes to its end.
    worker.suspend()
    request_stored("first")
    request_stored("second")
    refused = gateway.chat("a" * 1_500_000)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    with contextlib.suppress(psutil.NoSuchProcess):
        worker.resume()

    def taken() -> bool:
        answer: httpx.Response = gateway.chat("a" * 1_500_000)
        return bool(answer.json()["error"]["code"] == "context_length_exceeded")

    eventually(taken)
