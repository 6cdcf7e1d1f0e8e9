"""What a body says of tools, and what becomes of it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.http.generation.tools import tools_of
from gateway.http.openai.chat import ChatBody
from gateway.system.refusal import Refusal
from protocol.requests import Tools

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Wetter für eine Stadt",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": True,
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}


def _tools(tools: Any, **fields: Any) -> Tools | None:
    message = {"role": "user", "content": "?"}
    sent = {"model": "m", "messages": [message], "tools": tools, **fields}
    body = msgspec.json.decode(json.dumps(sent).encode(), type=ChatBody)
    return tools_of(body.tools, body.tool_choice, parallel=body.parallel_tool_calls is not False)


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _schema(parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def _allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [_named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_definitions_stay_as_they_were() -> None:
    tools = _tools([WEATHER, CLOCK])
    assert tools is not None
    assert json.loads(tools.definitions) == [WEATHER, CLOCK]
    assert (tools.choice, tools.name, tools.parallel) == ("auto", None, True)


@pytest.mark.parametrize("tools", [None, []])
@pytest.mark.parametrize("choice", [None, "none", "auto"])
def test_without_tools_there_are_none(tools: Any, choice: Any) -> None:
    assert _tools(tools, tool_choice=choice) is None


@pytest.mark.parametrize(
    ("choice", "mode", "name", "left"),
    [
        ("none", "none", None, ["get_weather", "clock"]),
        ("required", "required", None, ["get_weather", "clock"]),
        (_named("clock"), "required", "clock", ["get_weather", "clock"]),
        (_allowed("auto", "clock"), "auto", None, ["clock"]),
        (_allowed("required", "clock"), "required", None, ["clock"]),
    ],
)
def test_choices_of_tool(choice: Any, mode: str, name: str | None, left: list[str]) -> None:
    tools = _tools([WEATHER, CLOCK], tool_choice=choice, parallel_tool_calls=False)
    assert tools is not None
    assert (tools.choice, tools.name, tools.parallel) == (mode, name, False)
    assert [load["function"]["name"] for load in json.loads(tools.definitions)] == left


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([], "required", "tool_choice"),
        (None, _named("clock"), "tool_choice"),
        ([CLOCK], _named("get_weather"), "tool_choice"),
        ([CLOCK], _allowed("auto", "clock", "get_weather"), "tool_choice"),
        ([CLOCK], _allowed("auto"), "tool_choice"),
        ([CLOCK], {"type": "function"}, "tool_choice"),
        ([CLOCK], {"type": "allowed_tools"}, "tool_choice"),
        ([_schema([1])], None, "tools[0].function.parameters"),
        ([CLOCK, _schema("x")], "none", "tools[1].function.parameters"),
        ([_schema(True)], None, "tools[0].function.parameters"),
        ([CLOCK, _named("")], None, "tools[1].function.name"),
        ([_named("a b")], None, "tools[0].function.name"),
        ([_named("x" * 129)], None, "tools[0].function.name"),
    ],
)
def test_unknown_choice_of_tool_is_refused_by_name(tools: Any, choice: Any, param: str) -> None:
    with pytest.raises(Refusal) as caught:
        _tools(tools, tool_choice=choice)
    assert (caught.value.code, caught.value.param) == ("invalid_request_error", param)


def test_functions_and_their_schemas_have_a_bound() -> None:
    with pytest.raises(Refusal, match="1,025 functions, of 1,024 at most"):
        _tools([_named(f"f{number}") for number in range(1025)])
    large = {"type": "object", "title": "x" * (600 << 10)}
    assert _tools([_schema(large)]) is not None
    both = [_schema(large), {"type": "function", "function": {"name": "g", "parameters": large}}]
    with pytest.raises(Refusal, match="bytes, of 1,048,576 at most"):
        _tools(both)
