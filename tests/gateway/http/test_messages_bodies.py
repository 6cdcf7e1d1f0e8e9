"""Anthropic's messages, as a worker gets them."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from gateway.http.anthropic.bodies import AnthropicConversation, chat_messages, references, unread
from gateway.http.anthropic.messages import (
    AnthropicToolChoice,
    ToolDefinition,
    callable_tools,
    deferred,
    foreign_types,
)
from gateway.http.generation.tools import FunctionBody
from gateway.system.refusal import Refusal

IMAGE = {"type": "image", "source": {"type": "url", "url": "http://a.b/c.png"}}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}
SCHEMA = {"type": "object", "properties": {}}
TOOLS = msgspec.json.decode(
    msgspec.json.encode(
        [
            {"name": "late", "defer_loading": True, "input_schema": SCHEMA},
            {"name": "later", "defer_loading": True, "input_schema": SCHEMA},
            {"name": "look", "input_schema": SCHEMA},
            {"type": "web_search_20250305", "name": "web_search"},
            {"type": "bad type\r\n", "name": "odd"},
        ]
    ),
    type=list[ToolDefinition],
)


def _body(*contents: Any, system: Any = None) -> AnthropicConversation:
    """Calls of tools, and what the user then says."""
    call = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    turns = [
        each
        for content in contents
        for each in (
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": content},
        )
    ]
    messages = [{"role": "user", "content": "Hi"}, *turns]
    data = msgspec.json.encode({"messages": messages, "system": system})
    return msgspec.json.decode(data, type=AnthropicConversation)


def _result(*blocks: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "c", "content": list(blocks)}


def _reference(name: str) -> dict[str, Any]:
    return {"type": "tool_reference", "tool_name": name}


def test_pictures_are_words_to_who_does_not_look() -> None:
    said = {"type": "text", "text": "So?"}
    body = _body([_result(IMAGE, said), IMAGE, said])
    assert unread(body, vision=False) == {"image"}
    assert unread(body, vision=True) == set()
    seen = "(Here is a picture, which this model can't look at.)"
    *_, result, user = chat_messages(body, vision=False)
    assert (result.role, result.content) == ("tool", f"{seen}\nSo?")
    assert (user.role, user.content, user.pictures) == ("user", f"{seen}\nSo?", ())
    *_, result, user = chat_messages(body, [b"1", b"2"])
    assert (result.content, user.content) == ("So?", "So?")
    assert [(each.data, each.at) for each in user.pictures] == [(b"1", 0), (b"2", 0)]


@pytest.mark.parametrize("vision", [False, True])
def test_files_are_words_to_everybody(vision: bool) -> None:
    document = {"type": "document", "source": PDF, "title": "Plan"}
    body = _body([_result(document), document])
    assert unread(body, vision=vision) == {"document"}
    text = "Plan\n(Here is a file such as a PDF, of which this model can't be given the text.)"
    *_, result, user = chat_messages(body, vision=vision)
    assert (result.content, user.content) == (text, text)


def test_a_deferred_tool_is_told_of_once() -> None:
    body = _body(
        [_result(_reference("late"), _reference("look"))],
        [_result(_reference("late"))],
    )
    assert references(body) == {"late", "look"}
    tools = deferred(TOOLS)
    assert tools["late"] == FunctionBody("late", None, tools["late"].parameters)
    messages = chat_messages(body, deferred=tools)
    first, second = (each.content for each in messages if each.role == "tool")
    told, _, definitions = first.partition("\n")
    assert told == "These functions can be called from now on: late, look"
    assert json.loads(definitions) == [{"name": "late", "parameters": SCHEMA}]
    assert second == "These functions can be called from now on: late"
    assert set(tools) == {"late", "later"}


def test_what_can_be_called() -> None:
    found = callable_tools(TOOLS, None, {"late"})
    assert found is not None
    assert [each["function"]["name"] for each in json.loads(found.definitions)] == ["look"]
    assert [each["function"]["name"] for each in json.loads(found.mentioned)] == ["late"]
    with pytest.raises(Refusal, match="no function 'later'"):
        callable_tools(TOOLS, AnthropicToolChoice("tool", "later"), {"late"})


def test_what_only_anthropic_has() -> None:
    assert foreign_types(TOOLS) == {"web_search_20250305", "tool"}
    chosen = AnthropicToolChoice("tool", "web_search")
    found = callable_tools(TOOLS, chosen, ())
    assert found is not None
    assert found.choice == "auto"
    assert callable_tools(TOOLS[3:], AnthropicToolChoice("any"), ()) is None
    with pytest.raises(Refusal, match="no tools to choose from"):
        callable_tools([], AnthropicToolChoice("any"), ())


@pytest.mark.parametrize("beneath", ["", "\n"])
def test_the_line_about_the_bill_is_left_out(beneath: str) -> None:
    bill = f"x-anthropic-billing-header: cc_version=2.1.197.1c0; cc_entrypoint=cli;{beneath}"
    blocks = [{"type": "text", "text": each} for each in (bill, "Be brief.", "Be exact.")]
    assert chat_messages(_body(system=blocks))[0].content == "Be brief.\nBe exact."
    kept = [{"type": "text", "text": f"{bill}\nBe brief."}]
    assert "Be brief." in chat_messages(_body(system=kept))[0].content
    assert chat_messages(_body(system=bill))[0].role == "user"


def _told(block: Any) -> tuple[str, str, str]:
    """Of the assistant, in a result, and of the user."""
    body = _body([_result(block), block])
    body.messages[1].content += _body([block]).messages[-1].content
    _, assistant, result, user = chat_messages(body)
    return assistant.content, result.content, user.content


FETCHED = {"type": "text", "media_type": "text/plain", "data": "Rain."}


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        (
            "search_result",
            {"source": "http://a", "title": "T", "content": [{"type": "text", "text": "Rain."}]},
            "T\nhttp://a\nRain.",
        ),
        (
            "web_search_tool_result",
            {"content": [{"title": "T", "url": "http://a", "encrypted_content": "E"}] * 2},
            "T\nhttp://a\nT\nhttp://a",
        ),
        (
            "web_search_tool_result",
            {"content": {"type": "web_search_tool_result_error", "error_code": "unavailable"}},
            "unavailable",
        ),
        (
            "web_fetch_tool_result",
            {
                "content": {
                    "type": "web_fetch_result",
                    "url": "http://a",
                    "content": {"type": "document", "title": "T", "source": FETCHED},
                }
            },
            "http://a\nT\nRain.",
        ),
        (
            "bash_code_execution_tool_result",
            {"content": {"stdout": "1", "stderr": "", "return_code": 0, "content": []}},
            "1",
        ),
        ("mcp_tool_result", {"content": [{"type": "text", "text": "Rain."}]}, "Rain."),
    ],
)
def test_what_other_servers_found_is_told(kind: str, fields: Any, text: str) -> None:
    block = {"type": kind, "tool_use_id": "s", **fields}
    assert _told(block) == (f"\n({kind}:\n{text})\n", text, text)
    assert unread(_body([block]), vision=False) == set()


@pytest.mark.parametrize(
    "block",
    [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "?"}},
        {"type": "mcp_tool_use", "id": "s", "name": "far", "input": {}, "server_name": "far"},
        {"type": "redacted_thinking", "data": "AAAA"},
        {"type": "container_upload", "file_id": "f"},
        {"type": "audio", "source": {"type": "base64", "data": "AAAA"}},
        {"type": "made up\r\n"},
    ],
)
def test_what_nobody_can_read_is_left_out(block: dict[str, Any]) -> None:
    said = "(Here is something that this model can't be given.)"
    assert _told(block) == ("", said, said)
    name = block["type"] if block["type"].isidentifier() else "block"
    assert unread(_body([_result(block)]), vision=True) == {name}


@pytest.mark.parametrize(
    ("block", "place"),
    [
        ({"type": "text"}, "$.content[0]"),
        ({"type": "tool_result", "tool_use_id": "c", "content": [{"type": "thinking"}]}, "$.type"),
        ({"text": "?"}, "missing required field `type`"),
        ("?", "Expected `object`"),
    ],
)
def test_known_blocks_are_checked(block: Any, place: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=re.escape(place)):
        _body([block])
