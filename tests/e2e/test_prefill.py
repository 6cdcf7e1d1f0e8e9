"""An answer that goes on in the assistant's last message, on every API."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.gateway import Gateway

QUESTION = "What is Bulkhead?"


def _answer(gateway: Gateway, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = gateway.client.post(path, json={"model": "demo", **body})
    assert answer.status_code == 200, answer.text
    answered: dict[str, Any] = answer.json()
    return answered


def _chat(gateway: Gateway, messages: list[dict[str, Any]]) -> str:
    body = {"messages": messages, "temperature": 0}
    text: str = _answer(gateway, "/v1/chat/completions", body)["choices"][0]["message"]["content"]
    return text


def _anthropic(gateway: Gateway, messages: list[dict[str, Any]]) -> str:
    body = {"messages": messages, "temperature": 0, "max_tokens": 1000}
    return "".join(item["text"] for item in _answer(gateway, "/v1/messages", body)["content"])


def _responses(gateway: Gateway, messages: list[dict[str, Any]]) -> str:
    answered = _answer(gateway, "/v1/responses", {"input": messages, "temperature": 0})
    return "".join(part["text"] for item in answered["output"] for part in item["content"])


def _ollama(gateway: Gateway, messages: list[dict[str, Any]]) -> str:
    body = {"messages": messages, "stream": False, "options": {"temperature": 0}}
    text: str = _answer(gateway, "/api/chat", body)["message"]["content"]
    return text


@pytest.mark.parametrize("ask", [_chat, _anthropic, _responses, _ollama])
def test_the_answer_is_the_rest(gateway: Gateway, ask: Any) -> None:
    user = {"role": "user", "content": QUESTION}
    whole = ask(gateway, [user])
    begun = whole[: whole.index(" ", len(whole) // 2)]
    rest = ask(gateway, [user, {"role": "assistant", "content": begun}])
    assert f"{begun} {rest.lstrip()}" == whole


def test_a_text_that_goes_on_begins_no_reasoning(gateway: Gateway) -> None:
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "Bulkhead is"},
    ]
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    body = {"messages": messages, "tools": [tool], "tool_choice": "required", "max_tokens": 60}
    message = _answer(gateway, "/v1/chat/completions", body)["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "f"
    assert not message.get("reasoning")
