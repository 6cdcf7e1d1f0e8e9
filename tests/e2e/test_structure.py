"""Schemas on every API that takes them: what isn't enforced is said, and nothing is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.gateway import Gateway

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"], "not": {"const": "z"}}},
    "required": ["a"],
    "additionalProperties": False,
}
MESSAGES = [{"role": "user", "content": "Hello"}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
TOOL = {"name": "f", "parameters": SCHEMA, "strict": True}
CHAT = {"model": "demo", "messages": MESSAGES, "max_tokens": 60}
SAID = "x-bulkhead-not-enforced"
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {**CHAT, "response_format": FORMAT}),
    "json_object": (
        "/v1/chat/completions",
        {**CHAT, "response_format": {"type": "json_object", "schema": SCHEMA}},
    ),
    "tools": (
        "/v1/chat/completions",
        {**CHAT, "tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"},
    ),
    "completions": (
        "/v1/completions",
        {"model": "demo", "prompt": "Hello", "max_tokens": 60, "guided_json": SCHEMA},
    ),
    "responses": (
        "/v1/responses",
        {
            "model": "demo",
            "input": "Hello",
            "max_output_tokens": 60,
            "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}},
        },
    ),
    "messages": (
        "/v1/messages",
        {**CHAT, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ),
    "ollama": ("/api/chat", {"model": "demo", "messages": MESSAGES, "format": SCHEMA}),
}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ASKED)
def test_unenforced_schema_is_reported(name: str, stream: bool, gateway: Gateway) -> None:
    path, body = ASKED[name]
    answer = gateway.client.post(path, json={**body, "stream": stream})
    assert answer.status_code == 200, answer.text
    assert answer.headers[SAID] == "not"
    if name == "json_object" and not stream:
        content = answer.json()["choices"][0]["message"]["content"]
        assert json.loads(content)["a"] in ("x", "y")


def test_enforced_schema_is_silent(gateway: Gateway) -> None:
    answer = gateway.chat("Hello", response_format={"type": "json_object"}, max_tokens=30)
    assert SAID not in answer.headers


def test_answers_that_are_kept_have_it_whole(gateway: Gateway) -> None:
    answer = gateway.chat(
        "Hello", response_format=FORMAT, max_tokens=60, headers={"X-Mailbox": "keep"}
    )
    assert answer.status_code == 400
    assert '\\"not\\"' in answer.text


def test_an_empty_answer_has_a_list_of_log_probabilities(gateway: Gateway) -> None:
    choice = gateway.chat("Hello", guided_choice=[""], logprobs=True).json()["choices"][0]
    assert choice["message"]["content"] == ""
    assert choice["logprobs"]["content"] == []


@pytest.mark.parametrize("count", [1 << 31, 1 << 70])
def test_an_answer_longer_than_any_context_may_be_asked_for(count: int, gateway: Gateway) -> None:
    chat = {"model": "demo", "messages": MESSAGES, "stop": ["e"]}
    answers: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {**chat, "max_tokens": count},
        "/v1/completions": {"model": "demo", "prompt": "?", "stop": ["e"], "max_tokens": count},
        "/v1/responses": {
            "model": "demo",
            "input": "Hello",
            "stop": ["e"],
            "max_output_tokens": count,
        },
        "/v1/messages": {
            "model": "demo",
            "messages": MESSAGES,
            "stop_sequences": ["e"],
            "max_tokens": count,
        },
        "/api/chat": {
            "model": "demo",
            "messages": MESSAGES,
            "stream": False,
            "options": {"num_predict": count, "stop": ["e"]},
        },
    }
    for path, body in answers.items():
        answer = gateway.client.post(path, json=body)
        assert answer.status_code == 200, (path, answer.text)


def test_no_inputs_have_no_vectors(gateway: Gateway) -> None:
    for nothing in ({"input": []}, {"input": ""}, {}):
        answer = gateway.client.post("/api/embed", json={"model": "demo", **nothing})
        assert (answer.status_code, answer.json()["embeddings"]) == (200, [])
    space = gateway.client.post("/api/embed", json={"model": "demo", "input": " "})
    assert space.json().get("embeddings") != []
    for nothing in ({"prompt": ""}, {}):
        answer = gateway.client.post("/api/embeddings", json={"model": "demo", **nothing})
        assert (answer.status_code, answer.json()) == (200, {"embedding": []})
    missing = gateway.client.post("/api/embed", json={"model": "nobody", "input": []})
    assert missing.status_code == 404
