"""Anthropic's messages, as a worker gets them."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from gateway.http.anthropic.bodies import AnthropicConversation, converse
from gateway.http.anthropic.messages import (
    AnthropicToolChoice,
    ToolDefinition,
    callable_tools,
    deferred,
    foreign_types,
)
from gateway.http.generation.conversation import ConversationBuilder
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
        entry
        for content in contents
        for entry in (
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


def _conversation(body: AnthropicConversation, *, vision: bool = True) -> ConversationBuilder:
    conversation = ConversationBuilder(vision=vision)
    converse(body, conversation)
    return conversation


def test_model_without_vision_gets_notes_for_pictures() -> None:
    question = {"type": "text", "text": "So?"}
    body = _body([_result(IMAGE, question), IMAGE, question])
    blind = _conversation(body, vision=False)
    assert (blind.left_out, blind.refused) == ({"image"}, None)
    note = "(Here is a picture, which this model can't look at.)"
    *_, result, user = blind.messages
    assert (result.role, result.content) == ("tool", f"{note}\nSo?")
    assert (user.role, user.content, user.pictures) == ("user", f"{note}\nSo?", ())
    seeing = _conversation(body)
    assert seeing.left_out == set()
    names = ["messages.2.content.0.content.0", "messages.2.content.1"]
    assert [source.name for source in seeing.sources] == names
    read = {source: source.name.encode() for source in seeing.sources}
    *_, result, user = seeing.shown(read)
    assert (result.content, user.content) == ("So?", "So?")
    pictures = [(picture.data.decode(), picture.at) for picture in user.pictures]
    assert pictures == [(name, 0) for name in names]


def test_picture_of_system_is_refused_by_its_block() -> None:
    body = _body([{"type": "text", "text": "Look."}, IMAGE])
    body.messages[-1].role = "system"
    with pytest.raises(Refusal) as refused:
        _conversation(body)
    assert refused.value.param == "messages.2.content.1"


@pytest.mark.parametrize("vision", [False, True])
def test_files_become_notes(vision: bool) -> None:
    document = {"type": "document", "source": PDF, "title": "Plan"}
    conversation = _conversation(_body([_result(document), document]), vision=vision)
    assert conversation.left_out == {"document"}
    text = "Plan\n(Here is a file such as a PDF, of which this model can't be given the text.)"
    *_, result, user = conversation.messages
    assert (result.content, user.content) == (text, text)


def test_deferred_tool_is_described_once() -> None:
    body = _body(
        [_result(_reference("late"), _reference("look"))],
        [_result(_reference("late"))],
    )
    tools = deferred(TOOLS)
    assert tools["late"] == FunctionBody("late", None, tools["late"].parameters)
    conversation = ConversationBuilder(vision=True)
    assert converse(body, conversation, tools) == {"late", "look"}
    first, second = (item.content for item in conversation.messages if item.role == "tool")
    sentence, _, definitions = first.partition("\n")
    assert sentence == "These functions can be called from now on: late, look"
    assert json.loads(definitions) == [{"name": "late", "parameters": SCHEMA}]
    assert second == "These functions can be called from now on: late"
    assert set(tools) == {"late", "later"}


def test_callable_tools() -> None:
    found = callable_tools(TOOLS, None, {"late"})
    assert found is not None
    assert [load["function"]["name"] for load in json.loads(found.definitions)] == ["look"]
    assert [load["function"]["name"] for load in json.loads(found.mentioned)] == ["late"]
    with pytest.raises(Refusal, match="no function 'later'"):
        callable_tools(TOOLS, AnthropicToolChoice("tool", "later"), {"late"})


def test_server_tools_are_left_out() -> None:
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
    blocks = [{"type": "text", "text": text} for text in (bill, "Be brief.", "Be exact.")]
    assert _conversation(_body(system=blocks)).messages[0].content == "Be brief.\nBe exact."
    one_block = [{"type": "text", "text": f"{bill}\nBe brief."}]
    assert "Be brief." in _conversation(_body(system=one_block)).messages[0].content
    assert _conversation(_body(system=bill)).messages[0].role == "user"


def _texts(block: Any) -> tuple[str, str, str]:
    """Of the assistant, in a result, and of the user."""
    body = _body([_result(block), block])
    body.messages[1].content += _body([block]).messages[-1].content
    _, assistant, result, user = _conversation(body).messages
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
def test_results_of_server_tools_become_text(kind: str, fields: Any, text: str) -> None:
    block = {"type": kind, "tool_use_id": "s", **fields}
    assert _texts(block) == (f"\n({kind}:\n{text})\n", text, text)
    assert _conversation(_body([block]), vision=False).left_out == set()


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
def test_unreadable_block_is_left_out(block: dict[str, Any]) -> None:
    note = "(Here is something that this model can't be given.)"
    assert _texts(block) == ("", note, note)
    name = block["type"] if block["type"].isidentifier() else "block"
    assert _conversation(_body([_result(block)])).left_out == {name}


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
