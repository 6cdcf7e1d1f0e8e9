"""Chats that wait for clients that left, and a mailbox that can't be used."""

from __future__ import annotations

import http.client
import json
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from tests.support.folders import short_folder
from tests.support.gateway import START_S, Gateway, chat_body, eventually

QUESTION = "Hello"
KEEP = {"X-Mailbox": "keep"}
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def gateway(own_gateway: Gateway) -> Gateway:
    return own_gateway


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def text(gateway: Gateway) -> str:
    return gateway.say(QUESTION, **GREEDY)


def _fetched(gateway: Gateway, answer_id: str) -> dict[str, Any]:
    """The answer, once it is there."""

    def found() -> Any:
        answer = gateway.client.get(f"/v1/chat/completions/{answer_id}")
        if answer.status_code == 202:
            assert answer.headers["retry-after"]
            assert answer.json()["status"] in ("queued", "in_progress")
            assert answer.json()["choices"] == []
            return None
        return answer.raise_for_status().json()

    answer: dict[str, Any] = eventually(found, START_S)
    return answer


def test_a_client_that_stays_gets_its_answer_and_has_it_in_the_mailbox(
    client: openai.OpenAI, text: str
) -> None:
    asked: Any = {**chat_body(QUESTION), **GREEDY, "extra_headers": KEEP}
    whole = client.chat.completions.with_raw_response.create(**asked)
    kept_id = whole.headers["x-mailbox-id"]
    answer = whole.parse()
    assert (answer.id, answer.choices[0].message.content) == (kept_id, text)
    assert client.chat.completions.retrieve(kept_id).to_dict() == answer.to_dict()
    raw = client.chat.completions.with_raw_response.create(**asked, stream=True)
    streamed_id = raw.headers["x-mailbox-id"]
    chunks = list(raw.parse())
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    kept = client.chat.completions.retrieve(streamed_id)
    assert (kept.choices[0].message.content, kept.choices[0].finish_reason) == (text, "stop")
    assert [completion.id for completion in client.chat.completions.list(order="desc", limit=1)][
        :2
    ] == [
        streamed_id,
        kept_id,
    ]
    assert client.chat.completions.delete(kept_id).deleted
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.retrieve(kept_id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(streamed_id)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_vanishes_finds_it_later(gateway: Gateway, text: str, stream: bool) -> None:
    name = f"vanishing-{stream}"
    path = f"/v1/chat/completions/chatcmpl-{name}"
    body = json.dumps(chat_body(QUESTION, stream=stream, n=2, **GREEDY))
    other = http.client.HTTPConnection(gateway.url.removeprefix("http://"))
    other.request("POST", "/v1/chat/completions", body, {**KEEP, "X-Request-Id": name})
    eventually(lambda: gateway.client.get(path).status_code != 404, START_S)
    if stream:
        answer = other.getresponse()
        assert answer.headers["x-mailbox-id"] == f"chatcmpl-{name}"
        answer.readline()
    other.close()
    found = _fetched(gateway, f"chatcmpl-{name}")
    assert [choice["message"]["content"] for choice in found["choices"]] == [text, text]


def test_an_id_is_taken_once(gateway: Gateway) -> None:
    """As when a client's library sends a request again by itself."""
    headers = {**KEEP, "X-Request-Id": "once"}
    for status in (200, 400):
        answer = gateway.chat("Hi", max_tokens=2, headers=headers)
        assert answer.status_code == status
    assert answer.json()["error"]["param"] == "X-Request-Id"


def test_a_kept_answer_that_fails_says_why_again(gateway: Gateway) -> None:
    headers = {**KEEP, "X-Request-Id": "too-long"}
    answer = gateway.chat("word " * 50_000, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    fetched = gateway.client.get("/v1/chat/completions/chatcmpl-too-long")
    assert (fetched.status_code, fetched.json()) == (400, answer.json())
    assert fetched.headers["x-should-retry"] == "false"
    (listed,) = gateway.client.get("/v1/chat/completions?order=desc&limit=1").json()["data"]
    assert (listed["status"], listed["error"]) == ("failed", answer.json()["error"])


def test_entries_beside_an_id(gateway: Gateway) -> None:
    headers = {**KEEP, "X-Request-Id": "beside"}
    gateway.chat("Hi", max_tokens=2, headers=headers)
    path = "/v1/chat/completions/chatcmpl-beside"
    messages = gateway.client.get(f"{path}/messages")
    assert messages.status_code == 404
    assert f"aren't kept, only its answer: GET {path}." in messages.json()["error"]["message"]
    other = gateway.client.get(f"{path}-not/messages")
    assert "There is no kept chat completion" in other.json()["error"]["message"]
    slash = gateway.client.post("/v1/chat/completions/", json={}, follow_redirects=False)
    assert slash.status_code == 307
    assert slash.headers["location"].endswith("/v1/chat/completions")


@pytest.mark.parametrize(
    ("path", "header"),
    [("/v1/chat/completions", "yes"), ("/v1/completions", "keep"), ("/v1/messages", "keep")],
)
def test_it_is_never_ignored(gateway: Gateway, path: str, header: str) -> None:
    body = {**chat_body("Hi"), "prompt": "Hi", "max_tokens": 1}
    del body["messages" if path == "/v1/completions" else "prompt"]
    answer = gateway.client.post(path, json=body, headers={"X-Mailbox": header})
    assert answer.status_code == 400
    assert "X-Mailbox" in answer.text


def test_a_running_one_is_deleted(gateway: Gateway) -> None:
    body = chat_body("Tell me a story.", stream=True, max_tokens=3000, ignore_eos=True)
    with gateway.client.stream("POST", "/v1/chat/completions", json=body, headers=KEEP) as answer:
        next(answer.iter_lines())
        kept_id = answer.headers["x-mailbox-id"]
    assert gateway.model()["active_requests"] == 1, "it goes on without its client"
    assert gateway.client.delete(f"/v1/chat/completions/{kept_id}").json()["deleted"]
    assert gateway.client.get(f"/v1/chat/completions/{kept_id}").status_code == 404
    eventually(lambda: gateway.model()["active_requests"] == 0)


@pytest.mark.slow
def test_unwritten_answer_is_readable(gateway: Gateway) -> None:
    """Another program holds the file for long."""
    asked = {"model": "demo", "background": True, "stream": True, **GREEDY}
    asked["input"] = "What is Bulkhead?"
    with gateway.client.stream("POST", "/v1/responses", json=asked) as answer:
        lines = answer.iter_lines()
        first = next(line for line in lines if line.startswith("data: "))
        path = f"/v1/responses/{json.loads(first[6:])['response']['id']}"
        next(line for line in lines if "output_text.delta" in line)
        other = sqlite3.connect(gateway.state_dir / "mailbox.sqlite", isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            eventually(lambda: gateway.client.get(path).json()["status"] == "completed", START_S)
            refused = gateway.client.post("/v1/responses", json=asked)
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                503,
                "storage_unavailable",
            )
            assert any("locked" in event["reason"] for event in gateway.events("mailbox"))
            other.execute("ROLLBACK")
            status = "SELECT status FROM answers WHERE id = ?"
            name = (path.rsplit("/", 1)[1],)
            eventually(lambda: other.execute(status, name).fetchone() == ("completed",), START_S)
        finally:
            other.close()
        assert any("response.completed" in line for line in lines)


@pytest.mark.slow
def test_a_file_that_is_removed_while_it_is_used_is_begun_anew(gateway: Gateway) -> None:
    path = gateway.state_dir / "mailbox.sqlite"
    assert gateway.chat("Hi", max_tokens=2, headers={**KEEP, "X-Request-Id": "lost"}).is_success
    background = {"model": "demo", "input": "Hi", "background": True, "ignore_eos": True}
    running = gateway.client.post("/v1/responses", json={**background, "max_output_tokens": 2000})
    running_path = f"/v1/responses/{running.raise_for_status().json()['id']}"
    eventually(lambda: gateway.client.get(running_path).json()["status"] == "in_progress", START_S)
    path.unlink()
    assert gateway.chat("Hi", max_tokens=2, headers={**KEEP, "X-Request-Id": "there"}).is_success
    told = [event["reason"] for event in gateway.events("mailbox")]
    assert "was removed or replaced while it was in use" in told[-1]
    assert gateway.client.get("/v1/chat/completions/chatcmpl-lost").status_code == 404
    assert _fetched(gateway, "chatcmpl-there")
    eventually(lambda: gateway.client.get(running_path).status_code == 200, START_S)
    with sqlite3.connect(path) as sql:
        stored = {answer_id for (answer_id,) in sql.execute("SELECT id FROM answers")}
    sql.close()
    assert stored == {"chatcmpl-there", running.json()["id"]}


def test_a_file_of_a_newer_version_stays_and_the_rest_is_served(
    start_gateway: Callable[..., Gateway],
) -> None:
    with short_folder() as folder:
        path = f"{folder}/mailbox.sqlite"
        with sqlite3.connect(path) as sql:
            sql.execute("PRAGMA user_version = 1000")
        sql.close()
        gateway = start_gateway("--state-dir", folder)
        asked: dict[str, Any] = {"model": "demo", "input": "Hi", "max_output_tokens": 2}
        served = gateway.client.post("/v1/responses", json=asked)
        assert (served.status_code, served.json()["store"]) == (200, False)
        refusals = [
            gateway.client.post("/v1/responses", json={**asked, "background": True}),
            gateway.client.get(f"/v1/responses/{served.json()['id']}"),
            gateway.chat("Hi", headers=KEEP),
        ]
        for refusal in refusals:
            assert (refusal.status_code, refusal.json()["error"]["code"]) == (
                503,
                "storage_unavailable",
            )
            assert "newer Bulkhead" in refusal.json()["error"]["message"]
        (event,) = gateway.events("mailbox")
        assert "newer Bulkhead" in event["reason"]
        gateway.stop()
        with sqlite3.connect(path) as sql:
            assert sql.execute("PRAGMA user_version").fetchone() == (1000,)
        sql.close()
