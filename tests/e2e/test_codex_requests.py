"""What Codex sends with its defaults: tools and items of every type that it knows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import CompactedResponse, Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.support.gateway import Gateway
from tests.support.strict import decode

OPTIONAL = {
    "CompactedResponse": ["image"],
    "ResponseCompactionItem": ["created_by"],
    "InputTokensDetails": ["cache_write_tokens_details"],
}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwAD"
    "hgGAWjR9awAAAABJRU5ErkJggg=="
)
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Of a city",
    "strict": False,
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}},
}
NAMESPACE = {"type": "namespace", "name": "mcp__w", "description": "Weather.", "tools": [WEATHER]}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /(.|\\n)+/"},
}
SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": {
        "type": "object",
        "properties": {"query": {"enum": ["weather", "time"]}},
        "required": ["query"],
        "additionalProperties": False,
    },
}
TOOLS: list[dict[str, Any]] = [
    {**WEATHER, "name": "exec_command"},
    NAMESPACE,
    PATCH,
    SEARCH,
    {"type": "local_shell"},
    {"type": "web_search", "external_web_access": True, "search_content_types": ["text"]},
    {"type": "image_generation", "output_format": "png"},
]
BODY: dict[str, Any] = {
    "model": "demo",
    "input": [{"type": "message", "role": "user", "content": "Go on"}],
    "tools": TOOLS,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto", "context": "all_turns"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a2",
    "client_metadata": {"session_id": "01a2"},
    "text": {"verbosity": "low"},
    "context_management": [{"type": "compaction", "compact_threshold": 1000}],
    "max_output_tokens": 60,
    "temperature": 0,
}
HISTORY: list[dict[str, Any]] = [
    {"type": "additional_tools", "role": "developer", "tools": [{**PATCH, "name": "later"}]},
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Rules"}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go"}]},
    {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": "*** Begin"},
    {"type": "custom_tool_call_output", "call_id": "a", "output": "Exit code: 0"},
    {
        "type": "tool_search_call",
        "call_id": "b",
        "status": "completed",
        "execution": "client",
        "arguments": {"query": "weather", "limit": 5},
    },
    {
        "type": "tool_search_output",
        "call_id": "b",
        "status": "completed",
        "execution": "client",
        "tools": [{**NAMESPACE, "tools": [{**WEATHER, "defer_loading": True}]}],
    },
    {
        "type": "function_call",
        "call_id": "c",
        "name": "weather",
        "namespace": "mcp__w",
        "arguments": '{"city":"Rome"}',
    },
    {
        "type": "function_call_output",
        "call_id": "c",
        "output": [
            {"type": "input_text", "text": "Rain"},
            {"type": "input_image", "image_url": PICTURE, "detail": "original"},
        ],
    },
    {
        "type": "local_shell_call",
        "id": "lsh_1",
        "call_id": "d",
        "status": "completed",
        "action": {"type": "exec", "command": ["ls"], "env": {}},
    },
    {"type": "local_shell_call_output", "id": "d", "output": '{"output":"a.txt"}'},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
    {"type": "compaction", "encrypted_content": "gAAAAA=="},
    {
        "type": "agent_message",
        "author": "/root/a",
        "recipient": "/root",
        "content": [{"type": "input_text", "text": "Done"}],
    },
    {"type": "of_tomorrow", "output": {"a": 1}},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go on"}]},
]


def _events(gateway: Gateway, body: dict[str, Any]) -> list[Any]:
    with gateway.client.stream("POST", "/v1/responses", json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line[:5] == "data:"]
    assert lines.pop() == "[DONE]"
    return [EVENT.validate_python(json.loads(text), strict=True) for text in lines]


def _whole(gateway: Gateway, body: dict[str, Any]) -> Response:
    answer = gateway.client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    return Response.model_validate(answer.json(), strict=True)


@pytest.mark.slow
def test_its_first_request(gateway: Gateway) -> None:
    whole = _whole(gateway, BODY)
    assert [tool.type for tool in whole.tools] == [
        "function",
        "namespace",
        "custom",
        "tool_search",
        "local_shell",
    ]
    assert whole.text.verbosity == "low"
    assert _events(gateway, BODY)[-1].response.output_text == whole.output_text


@pytest.mark.slow
def test_a_conversation_with_everything_goes_on(gateway: Gateway) -> None:
    whole = _whole(gateway, {**BODY, "input": HISTORY})
    assert whole.output
    # Stored, and gone on from.
    stored = _whole(gateway, {**BODY, "input": HISTORY, "store": True})
    after = _whole(gateway, {**BODY, "input": "And?", "previous_response_id": stored.id})
    assert after.usage.input_tokens > stored.usage.input_tokens
    items = gateway.client.get(f"/v1/responses/{after.id}/input_items?limit=100&order=asc")
    assert items.status_code == 404, "Codex stores nothing"
    kinds = [
        item["type"]
        for item in gateway.client.get(
            f"/v1/responses/{stored.id}/input_items?limit=100&order=asc"
        ).json()["data"]
    ]
    assert kinds == [entry["type"] for entry in HISTORY]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choice", "kind", "name", "namespace"),
    [
        ({"type": "custom", "name": "apply_patch"}, "custom_tool_call", "apply_patch", None),
        ({"type": "function", "name": "weather"}, "function_call", "weather", "mcp__w"),
        ("required", "tool_search_call", None, None),
        ("required", "local_shell_call", None, None),
    ],
)
def test_calls_are_told_back(
    gateway: Gateway, choice: Any, kind: str, name: str | None, namespace: str | None
) -> None:
    body = {**BODY, "tool_choice": choice, "parallel_tool_calls": False}
    if choice == "required":
        body["tools"] = [tool for tool in TOOLS if f"{tool['type']}_call" == kind]
    (call,) = _whole(gateway, body).output
    assert (call.type, getattr(call, "name", None)) == (kind, name)
    assert getattr(call, "namespace", None) == namespace
    events = _events(gateway, body)
    (streamed,) = events[-1].response.output
    alike = {"id", "call_id"}
    assert streamed.model_dump(exclude=alike) == call.model_dump(exclude=alike)
    if kind == "custom_tool_call":
        deltas = [event.delta for event in events if event.type.endswith("tool_call_input.delta")]
        assert "".join(deltas) == call.input
        assert call.input
    if kind == "tool_search_call":
        assert call.arguments["query"] in ("weather", "time")
    # As it is sent back, with its result.
    result = {"type": f"{kind}_output", "call_id": call.call_id, "output": "OK", "tools": []}
    result["type"] = result["type"].replace("tool_search_call", "tool_search")
    items = [*BODY["input"], call.to_dict(), result]
    assert _whole(gateway, {**BODY, "input": items}).output


def test_a_tool_that_was_found_later_is_called(gateway: Gateway) -> None:
    """It isn't shown at the beginning of the prompt, and known all the same."""
    asked = {**BODY, "tools": [SEARCH], "tool_choice": {"type": "function", "name": "weather"}}
    (call,) = _whole(gateway, {**asked, "input": [*HISTORY[2:7], HISTORY[-1]]}).output
    assert (call.type, call.name, call.namespace) == ("function_call", "weather", "mcp__w")


@pytest.mark.slow
def test_a_conversation_is_summed_up(gateway: Gateway) -> None:
    items = [
        {"role": "developer", "content": "Rules"},
        {"role": "user", "content": [{"type": "input_text", "text": "What is Bulkhead?"}]},
        {"role": "assistant", "content": "A server. " * 200},
        {"role": "user", "content": "What can you do?"},
    ]
    asked = {**BODY, "input": items, "max_output_tokens": 1000}
    answer = gateway.client.post("/v1/responses/compact", json=asked)
    assert answer.status_code == 200, answer.text
    compacted = answer.json()
    decode(CompactedResponse, {**compacted, "output": compacted["output"][3:]}, OPTIONAL)
    assert [element["type"] for element in compacted["output"]] == [*["message"] * 3, "compaction"]
    assert [element["role"] for element in compacted["output"][:3]] == ["developer", "user", "user"]
    assert compacted["usage"]["input_tokens"] > 400
    # What comes back is the next input, as it is.
    again = {"role": "user", "content": "Go on"}
    whole = _whole(gateway, {**BODY, "input": [*compacted["output"], again]})
    assert whole.usage.input_tokens < compacted["usage"]["input_tokens"]
    # The other way to ask for it, as an item.
    body = {**asked, "input": [*items, {"type": "compaction_trigger"}]}
    events = _events(gateway, body)
    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "output_item.done",
        "completed",
    ]
    (item,) = events[-1].response.output
    assert item.encrypted_content == compacted["output"][-1]["encrypted_content"]
    (item,) = _whole(gateway, body).output
    assert item.type == "compaction"


def test_a_stored_conversation_is_summed_up(gateway: Gateway) -> None:
    stored = _whole(gateway, {**BODY, "store": True})
    asked = {"model": "demo", "previous_response_id": stored.id, "max_output_tokens": 20}
    compacted = gateway.client.post("/v1/responses/compact", json=asked).json()
    first, item = compacted["output"]
    assert first["content"] == [{"type": "input_text", "text": "Go on"}]
    assert compacted["usage"]["output_tokens"] <= 20
    assert item["type"] == "compaction"
    missing = gateway.client.post("/v1/responses/compact", json={"model": "demo"})
    assert missing.status_code == 400
