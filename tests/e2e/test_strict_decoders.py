"""Answers have every field that OpenAI's, Open Responses' and Anthropic's clients require."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent

from tests.support.gateway import START_S, Gateway, eventually
from tests.support.strict import decode

pytestmark = pytest.mark.slow

# Which answers of Anthropic's have only for tools of a set.
ANTHROPIC = {"ToolUseBlock": ["toolset_name"]}
# What OpenAI's specification doesn't require; nothing here has any of it.
OPENAI = {
    "Response": [
        "access_programs",
        "conversation",
        "image",
        "input_transformations",
        "moderation",
        "prompt",
        "prompt_cache_diagnostics",
        "prompt_cache_options",
        "prompt_cache_retention",
        "tool_usage",
    ],
    "FunctionTool": ["allowed_callers", "async_", "defer_loading", "output_schema"],
    "InputTokensDetails": ["cache_write_tokens_details"],
    "Reasoning": ["context", "generate_summary", "mode"],
    "ResponseFunctionToolCall": ["async_", "caller", "namespace"],
    "ResponseOutputMessage": ["phase"],
    "ResponseReasoningItem": ["encrypted_content"],
}
# What Open Responses requires beside that. Of these nothing may be null.
NUMBERS = {
    "temperature": 0,
    "top_p": 1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0,
    "top_logprobs": 0,
}
PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}}
FUNCTION = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
SCHEMA = {**PARAMETERS, "required": ["city"], "additionalProperties": False}
PLAIN: dict[str, Any] = {"input": "What can you do?"}
RESPONSES = {
    "text": PLAIN,
    "reasoning": {**PLAIN, "enable_thinking": True, "reasoning": {"effort": "low"}},
    "calls": {**PLAIN, "tools": [FUNCTION, {**FUNCTION, "name": "f"}], "tool_choice": "required"},
    "chosen": {
        **PLAIN,
        "tools": [FUNCTION],
        "tool_choice": {"type": "function", "name": "get_weather"},
        "parallel_tool_calls": False,
    },
    "structure": {
        **PLAIN,
        "text": {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA}},
    },
    "logprobs": {**PLAIN, "include": ["message.output_text.logprobs"], "max_output_tokens": 3},
}
MESSAGES = {
    "text": {},
    "thinking": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    "calls": {
        "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any"},
    },
    "limit": {"max_tokens": 3},
}


def _events(gateway: Gateway, path: str, body: dict[str, Any]) -> Iterator[Any]:
    with gateway.client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            # What ends a stream of OpenAI's.
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


def _check_response(response: dict[str, Any]) -> None:
    decode(Response, response, OPENAI)
    assert {name: response[name] for name in NUMBERS} == NUMBERS
    for tool in response["tools"]:
        assert tool.keys() >= {"type", "name", "description", "parameters", "strict"}
        assert tool["strict"] is False
    assert response["reasoning"].keys() >= {"effort", "summary"}
    assert response["metadata"] == {}
    assert isinstance(response["service_tier"], str)


@pytest.mark.parametrize("asked", RESPONSES.values(), ids=RESPONSES)
def test_responses(gateway: Gateway, asked: dict[str, Any]) -> None:
    body = {"model": "demo", "temperature": 0, "presence_penalty": 0.5, "store": False, **asked}
    body.setdefault("max_output_tokens", 300)
    whole = gateway.client.post("/v1/responses", json=body)
    assert whole.status_code == 200, whole.text
    _check_response(whole.json())
    for event in _events(gateway, "/v1/responses", body):
        decode(ResponseStreamEvent, event, OPENAI)
        if "response" in event:
            _check_response(event["response"])


def test_unrequested_choices_are_the_models_own(gateway: Gateway) -> None:
    """The demo model's files ask for greedy sampling; one that is queued can't know that yet."""
    body = {"model": "demo", "input": "Hi", "max_output_tokens": 1}
    whole = gateway.client.post("/v1/responses", json=body).json()
    assert (whole["temperature"], whole["top_p"]) == (0.0, 1.0)
    queued = gateway.client.post("/v1/responses", json={**body, "background": True}).json()
    decode(Response, queued, OPENAI)
    assert queued["temperature"] == 1.0
    path = f"/v1/responses/{queued['id']}"
    eventually(lambda: gateway.client.get(path).json()["status"] == "incomplete", START_S)
    assert gateway.client.get(path).json()["temperature"] == 0.0


@pytest.mark.parametrize("asked", MESSAGES.values(), ids=MESSAGES)
def test_messages(gateway: Gateway, asked: dict[str, Any]) -> None:
    # This import takes four seconds: at the top of the file, every process of a run would pay them.
    from anthropic.types import Message, RawMessageStreamEvent

    question = {"role": "user", "content": "What can you do?"}
    body = {"model": "demo", "max_tokens": 300, "messages": [question], "temperature": 0, **asked}
    whole = gateway.client.post("/v1/messages", json=body)
    assert whole.status_code == 200, whole.text
    message = decode(Message, whole.json(), ANTHROPIC)
    assert message.usage.service_tier == "standard"
    for event in _events(gateway, "/v1/messages", body):
        if event["type"] != "ping":
            decode(RawMessageStreamEvent, event, ANTHROPIC)


def test_counts_and_errors_of_messages(gateway: Gateway) -> None:
    from anthropic.types import MessageTokensCount
    from anthropic.types.shared import ErrorResponse

    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}
    counted = gateway.client.post("/v1/messages/count_tokens", json=body)
    decode(MessageTokensCount, counted.json(), ANTHROPIC)
    decode(ErrorResponse, gateway.client.post("/v1/messages", json=body).json(), ANTHROPIC)
