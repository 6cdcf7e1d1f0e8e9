"""Tools of every type are told to a model as functions, and its calls are told back."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Tool
from pydantic import TypeAdapter

from gateway.http.generation.conversation import ConversationBuilder
from gateway.http.openai.responses_bodies import ResponseBody, tools
from gateway.http.openai.responses_conversation import BroughtTools, converse
from gateway.http.openai.responses_items import (
    ItemBody,
    sealed,
    without_superseded,
)
from gateway.http.openai.responses_objects import WrittenInput, action_of, arguments_of, shown_tools
from gateway.system.refusal import Refusal
from protocol.requests import CalledTool, ChatMessage, Picture

NOTHING = BroughtTools([], [])
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
CUSTOM = {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": GRAMMAR}
MEMBER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
NAMESPACE = {"type": "namespace", "name": "mcp__w", "description": "Weather", "tools": [MEMBER]}
SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}
SHELL = {"type": "local_shell"}
HOSTED = [
    {"type": "web_search", "external_web_access": True, "filters": {"allowed_domains": ["a"]}},
    {"type": "image_generation", "output_format": "png"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "tool_search"},
]
CLOCK = {"type": "function", "name": "clock", "description": "Time", "parameters": None}


def _body(**fields: Any) -> ResponseBody:
    return msgspec.json.decode(
        json.dumps({"model": "m", "input": "x", **fields}), type=ResponseBody
    )


def _shown(*asked: dict[str, Any]) -> list[Any]:
    found: list[Any] = msgspec.json.decode(shown_tools(_body(tools=asked)))
    return found


class Rendered(NamedTuple):
    messages: Sequence[ChatMessage]
    tools: BroughtTools
    conversation: ConversationBuilder


def _rendered(
    *items: dict[str, Any], pictures: tuple[bytes, ...] = (), vision: bool = True
) -> Rendered:
    decoded = msgspec.json.decode(json.dumps(items), type=list[ItemBody])
    names = [f"input[{index}]" for index in range(len(items))]
    conversation = ConversationBuilder(vision=vision)
    brought = converse(None, decoded, names, conversation)
    read = dict(zip(conversation.sources, pictures, strict=True))
    return Rendered(conversation.shown(read), brought, conversation)


def _functions(body: ResponseBody, brought: BroughtTools = NOTHING) -> dict[str, Any]:
    offered = tools(body, brought)
    assert offered is not None
    return {tool["function"]["name"]: tool["function"] for tool in offered.known}


def test_every_tool_becomes_function() -> None:
    found = _functions(_body(tools=[*HOSTED, CUSTOM, NAMESPACE, SEARCH, SHELL, CLOCK]))
    assert list(found) == ["apply_patch", "mcp__w__weather", "tool_search", "local_shell", "clock"]
    assert found["apply_patch"]["description"] == (
        "Edits.\n\nThe input matches this lark grammar:\nstart: /.+/"
    )
    assert list(found["apply_patch"]["parameters"]["properties"]) == ["input"]
    assert found["tool_search"]["parameters"] == SEARCH["parameters"]


def test_tools_that_nobody_here_can_run_are_none() -> None:
    assert tools(_body(tools=HOSTED), NOTHING) is None
    assert _shown(*HOSTED) == []


def test_response_shows_tools_that_run_here() -> None:
    shown = _shown(*HOSTED, CUSTOM, NAMESPACE, SEARCH, SHELL, CLOCK)
    assert [item["type"] for item in shown] == [
        "custom",
        "namespace",
        "tool_search",
        "local_shell",
        "function",
    ]
    for item in shown:
        TypeAdapter(Tool).validate_python(item, strict=True)
    assert shown[0]["format"] == GRAMMAR
    assert shown[1]["tools"][0] == {**MEMBER, "description": None, "strict": False}
    assert shown[4] == {**CLOCK, "strict": False}


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
        ({"type": "function", "name": "weather"}, "mcp__w__weather"),
        ({"type": "local_shell"}, "local_shell"),
    ],
)
def test_choice_of_tool(choice: Any, name: str) -> None:
    offered = tools(_body(tools=[CUSTOM, NAMESPACE, SHELL], tool_choice=choice), NOTHING)
    assert offered is not None
    assert (offered.choice, offered.name) == ("required", name)


def test_allowed_tools_are_offered() -> None:
    some = [{"type": "web_search"}, {"type": "custom", "name": "apply_patch"}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": some}
    assert list(_functions(_body(tools=[*HOSTED, CUSTOM, SHELL], tool_choice=choice))) == [
        "apply_patch"
    ]


def test_a_choice_of_what_runs_elsewhere_is_none() -> None:
    for choice in ({"type": "web_search"}, "required"):
        assert tools(_body(tools=HOSTED, tool_choice=choice), NOTHING) is None
    offered = tools(_body(tools=[*HOSTED, CLOCK], tool_choice={"type": "web_search"}), NOTHING)
    assert offered is not None
    assert offered.choice == "auto"
    for choice in ({"type": "web_search"}, "required"):
        with pytest.raises(Refusal) as refused:
            tools(_body(tool_choice=choice), NOTHING)
        assert refused.value.param == "tool_choice"


def test_errors_name_the_place_in_the_body() -> None:
    wrong = {**NAMESPACE, "tools": [MEMBER, {"type": "function", "name": "a b"}]}
    with pytest.raises(Refusal) as refused:
        tools(_body(tools=[*HOSTED, wrong]), NOTHING)
    assert refused.value.param == "tools[4].tools[1].name"


# Items

USER = {"role": "user", "content": "Go"}
PATCH = {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": 'x"\n'}
PATCHED = {"type": "custom_tool_call_output", "call_id": "a", "output": "Done"}
PICTURE = {"type": "input_image", "image_url": "data:x", "detail": "original"}
LOOKED = {
    "type": "function_call_output",
    "call_id": "b",
    "output": [{"type": "input_text", "text": "Seen"}, PICTURE],
}
LOOK = {"type": "function_call", "call_id": "b", "name": "look", "namespace": "n", "arguments": ""}
FOUND = {
    "type": "tool_search_output",
    "call_id": "c",
    "execution": "client",
    "tools": [{**NAMESPACE, "tools": [{**MEMBER, "defer_loading": True}]}],
}
FIND = {
    "type": "tool_search_call",
    "call_id": "c",
    "execution": "client",
    "arguments": {"query": "weather"},
}
RUN = {
    "type": "local_shell_call",
    "id": "lsh_1",
    "call_id": "d",
    "action": {"type": "exec", "command": ["ls"], "env": {}},
}
RAN = {"type": "local_shell_call_output", "id": "d", "output": "a.txt"}


def test_calls_of_every_kind_and_their_results() -> None:
    rendered = _rendered(USER, PATCH, PATCHED, FIND, FOUND, RUN, RAN)
    calls = [call for message in rendered.messages for call in message.tool_calls]
    assert calls == [
        CalledTool("a", "apply_patch", '{"input":"x\\"\\n"}'),
        CalledTool("c", "tool_search", '{"query":"weather"}'),
        CalledTool("d", "local_shell", '{"type":"exec","command":["ls"],"env":{}}'),
    ]
    results = [chat_message for chat_message in rendered.messages if chat_message.role == "tool"]
    assert [result.tool_call_id for result in results] == ["a", "c", "d"]
    assert results[0].content == "Done"
    assert '"name":"mcp__w__weather"' in results[1].content
    assert results[2].content == "a.txt"


def test_tools_that_are_found_later_leave_the_prompt_as_it_was() -> None:
    offered = tools(_body(tools=[SEARCH]), _rendered(USER, FIND, FOUND).tools)
    assert offered is not None
    assert "weather" not in offered.definitions
    assert json.loads(offered.mentioned)[0]["function"]["name"] == "mcp__w__weather"
    # What was offered at the beginning isn't offered again.
    again = tools(_body(tools=[SEARCH, NAMESPACE]), _rendered(USER, FIND, FOUND).tools)
    assert again is not None
    assert json.loads(again.mentioned) == []
    assert len(again.known) == 2


def test_tools_in_items_of_the_beginning_are_tools() -> None:
    brought = {"type": "additional_tools", "role": "developer", "tools": [CUSTOM]}
    first = _rendered(brought, {"role": "developer", "content": "Rules"}, USER)
    assert [message.role for message in first.messages] == ["system", "user"]
    assert list(_functions(_body(), first.tools)) == ["apply_patch"]
    later = _rendered(USER, brought)
    assert [chat_message.role for chat_message in later.messages] == ["user", "system"]
    offered = tools(_body(), later.tools)
    assert offered is not None
    assert (offered.definitions, len(offered.known)) == ("[]", 1)


def test_pictures_in_results_are_shown_behind_them() -> None:
    items = (USER, PATCH, LOOK, LOOKED, PATCHED, {"role": "assistant", "content": "Nice"})
    rendered = _rendered(*items, pictures=(b"png",))
    assert [message.role for message in rendered.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
        "assistant",
    ]
    assert rendered.messages[2] == ChatMessage("tool", "Seen", tool_call_id="b")
    (picture,) = rendered.messages[4].pictures
    assert picture == Picture(b"png", len(rendered.messages[4].content), picture.name)
    assert picture.name == "input[3].output[1].image_url"


def test_model_without_vision_gets_note_for_picture_in_result() -> None:
    rendered = _rendered(USER, LOOK, LOOKED, vision=False)
    assert rendered.conversation.sources == []
    assert (rendered.conversation.refused, rendered.conversation.left_out) == (None, {"image"})
    assert rendered.messages[-1].content == (
        "Seen\n(Here is a picture, which this model can't look at.)"
    )


UNKNOWN: list[dict[str, Any]] = [
    {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search"}},
    {"type": "image_generation_call", "id": "ig", "status": "completed", "result": "aGk="},
    {"type": "computer_call_output", "call_id": "z", "output": {"type": "computer_screenshot"}},
    {"type": "shell_call_output", "call_id": "z", "output": [{"stdout": "a", "stderr": ""}]},
    {"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "t", "input_schema": {}}]},
    {"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": [1]},
    {"type": "tool_search_output", "call_id": None, "execution": "server", "tools": [MEMBER]},
    {"type": "compaction_trigger"},
    {"type": "of_tomorrow", "arguments": 5, "input": [], "action": "x", "content": []},
]


@pytest.mark.parametrize("item", UNKNOWN, ids=lambda element: element["type"])
def test_unknown_item_is_skipped(item: dict[str, Any]) -> None:
    rendered = _rendered(USER, item, {"role": "user", "content": "More"})
    assert [message.content for message in rendered.messages] == ["Go", "More"]


def test_message_of_other_agent_is_users_message() -> None:
    content = [{"type": "input_text", "text": "Hi"}, {"type": "encrypted_content"}]
    item = {"type": "agent_message", "author": "/root/a", "recipient": "/root", "content": content}
    assert _rendered(USER, item).messages[1].content == "/root/a to /root:\nHi"


def test_a_summary_stands_for_what_it_sums_up() -> None:
    summary = {"type": "compaction", "encrypted_content": sealed("They went.")}
    items = (USER, {"role": "assistant", "content": "Going"}, PATCH, PATCHED, summary, USER)
    decoded = msgspec.json.decode(json.dumps(items), type=list[ItemBody])
    left, names = without_superseded(decoded, [str(index) for index in range(6)])
    assert names == ["0", "4", "5"]
    conversation = ConversationBuilder(vision=True)
    converse(None, left, names, conversation)
    assert conversation.messages[1].content.endswith("summed up:\n\nThey went.")
    foreign = {"type": "compaction", "encrypted_content": "gAAAAA=="}
    stays, _ = without_superseded(
        msgspec.json.decode(json.dumps([*items[:4], foreign]), type=list[ItemBody]), ["x"] * 5
    )
    assert len(stays) == 5, "what can't be read stands for nothing"
    assert "another server" in _rendered(USER, foreign).messages[1].content


# What a model writes


@given(text=st.text(), cuts=st.lists(st.integers(0, 200), max_size=6), ascii_only=st.booleans())
def test_input_arrives_piece_by_piece(text: str, cuts: list[int], ascii_only: bool) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    places = [0, *sorted(min(cut, len(arguments)) for cut in cuts), len(arguments)]
    written = WrittenInput()
    pieces = [written.add(arguments[begin:end]) for begin, end in itertools.pairwise(places)]
    assert "".join(pieces) == written.text == text
    assert written.end() == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"patch": "x"}', "x"),
        ('{"a": "x", "b": "y"}', '{"a": "x", "b": "y"}'),
        ('"x"', "x"),
        ("*** Begin", "*** Begin"),
        ('{"input": "cut', "cut"),
        ('{"a": 1, "input": "x"}', "x"),
        ('{"input": "\\ud83d', ""),
        ('{"input": "\\ud83d"}', "?"),
        ("", ""),
    ],
)
def test_input_that_was_written_otherwise(arguments: str, text: str) -> None:
    written = WrittenInput()
    deltas = written.add(arguments)
    deltas += written.end()
    assert deltas == written.text == text


def test_arguments_of_other_calls() -> None:
    assert arguments_of('{"query": "x"}') == {"query": "x"}
    assert arguments_of("[1]") == arguments_of("{") == {}
    assert action_of('{"command": "ls -l"}').command == ["bash", "-lc", "ls -l"]
    assert action_of('{"command": ["ls"], "timeout_ms": 5}').timeout_ms == 5
    assert action_of('{"command": 5}').command == []
