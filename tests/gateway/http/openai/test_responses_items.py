"""Items of a conversation become messages, and what can't is said by its place."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.http.generation.conversation import ConversationBuilder
from gateway.http.generation.supported_parameters import check_supported
from gateway.http.openai.responses_bodies import ResponseBody, check_body, tools
from gateway.http.openai.responses_conversation import BroughtTools, converse
from gateway.http.openai.responses_input import places_after, possible_cuts
from gateway.http.openai.responses_items import (
    ItemBody,
    decode_items,
    own_items,
    sealed,
)
from gateway.requests.share import ByteBudget, Share
from gateway.system.refusal import Refusal
from protocol.requests import CalledTool, ChatMessage, Picture


def _items(*bodies: dict[str, Any]) -> list[ItemBody]:
    return msgspec.json.decode(json.dumps(bodies), type=list[ItemBody])


def _messages(
    *bodies: dict[str, Any], instructions: str | None = None, pictures: tuple[bytes, ...] = ()
) -> list[ChatMessage]:
    items = _items(*bodies)
    names = [f"input[{index}]" for index in range(len(items))]
    conversation = ConversationBuilder(vision=True)
    converse(instructions, items, names, conversation)
    read = dict(zip(conversation.sources, pictures, strict=True))
    return list(conversation.shown(read))


CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"a":1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "Rain"}
THOUGHT = {
    "type": "reasoning",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
}


def test_turn_of_assistant_is_one_message() -> None:
    message = {"role": "assistant", "content": [{"type": "output_text", "text": "Let me look."}]}
    found = _messages(
        {"role": "user", "content": "Weather?"},
        THOUGHT,
        message,
        CALL,
        {**CALL, "call_id": "c2"},
        RESULT,
        {**RESULT, "call_id": "c2", "output": [{"type": "input_text", "text": "Sun"}]},
        THOUGHT,
        {"role": "assistant", "content": "Rain."},
    )
    call = CalledTool("c1", "weather", '{"a":1}')
    assert found == [
        ChatMessage("user", "Weather?"),
        ChatMessage(
            "assistant",
            "Let me look.",
            reasoning="Hm.",
            tool_calls=(call, msgspec.structs.replace(call, id="c2")),
        ),
        ChatMessage("tool", "Rain", tool_call_id="c1"),
        ChatMessage("tool", "Sun", tool_call_id="c2"),
        ChatMessage("assistant", "Rain.", reasoning="Hm."),
    ]


def test_first_system_messages_are_joined() -> None:
    found = _messages(
        {"role": "developer", "content": "Use tools."},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Now in French."},
        instructions="Be brief.",
    )
    assert [(message.role, message.content) for message in found] == [
        ("system", "Be brief.\n\nUse tools."),
        ("user", "Hi"),
        ("system", "Now in French."),
    ]


@pytest.mark.parametrize(
    "item",
    [
        {**THOUGHT, "content": None, "summary": [{"type": "summary_text", "text": "Hm."}]},
        {**THOUGHT, "content": None, "encrypted_content": sealed("Hm.")},
    ],
)
def test_reasoning_as_clients_send_it_back(item: dict[str, Any]) -> None:
    (found,) = _messages(item)
    assert found.reasoning == "Hm."


@pytest.mark.parametrize(
    "part", [{"type": "thinking", "thinking": "Hm."}, {"type": "reasoning", "text": "Hm."}]
)
def test_thoughts_among_the_parts_of_an_assistant(part: dict[str, str]) -> None:
    message = {"type": "output_text", "text": "Yes."}
    (found,) = _messages({"role": "assistant", "content": [part, message]})
    assert (found.reasoning, found.content) == ("Hm.", "Yes.")


@pytest.mark.parametrize("text", ["gAAAA==", "not base64", "YWJj"])
def test_reasoning_that_another_server_sealed_is_not_read(text: str) -> None:
    found = _messages({**THOUGHT, "content": None, "encrypted_content": text}, CALL)
    assert [message.reasoning for message in found] == [None]


def test_pictures_stand_where_they_stood() -> None:
    body = {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "What"},
            {"type": "input_image", "image_url": "data:x", "detail": "low"},
            {"type": "input_text", "text": " is this?"},
        ],
    }
    (found,) = _messages(body, pictures=(b"png",))
    assert found.pictures == (Picture(b"png", 4, "input[0].content[1].image_url"),)
    assert found.content == "What is this?"


@pytest.mark.parametrize(
    ("bodies", "param"),
    [
        ([RESULT], "input[0].call_id"),
        ([{"type": "function_call", "name": "f"}], "input[0].call_id"),
        ([{"type": "function_call", "call_id": "f"}], "input[0].name"),
        ([{"content": "Hi"}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([{"role": "user", "content": [{"type": "input_file"}]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
    ],
)
def test_invalid_item_is_named_by_its_place(bodies: list[dict[str, Any]], param: str) -> None:
    with pytest.raises(Refusal) as refused:
        _messages(*bodies)
    assert refused.value.param == param
    assert param in refused.value.message


@pytest.mark.parametrize("output", [{"output": None}, {}], ids=["null", "absent"])
def test_an_output_may_be_nothing(output: dict[str, None]) -> None:
    found = _messages(CALL, {key: RESULT[key] for key in RESULT if key != "output"} | output)
    assert (found[-1].role, found[-1].content) == ("tool", "")


def test_pictures_only_from_users() -> None:
    body = {"role": "assistant", "content": [{"type": "input_image", "image_url": "data:x"}]}
    with pytest.raises(Refusal, match="pictures in a user's message"):
        _messages(body)
    body = {"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}
    with pytest.raises(Refusal, match="files are not supported"):
        _messages(body)


def test_stored_items_have_types_and_ids() -> None:
    (text,) = own_items("Hi", "abc")
    assert json.loads(msgspec.json.encode(text)) == {
        "type": "message",
        "id": "msg_abc0000",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": "Hi"}],
    }
    items = own_items(_items({"role": "assistant", "content": "Yes"}, CALL, RESULT), "abc")
    assert [item.id for item in items] == ["msg_abc0000", "fc_abc0001", "fco_abc0002"]
    assert decode_items(msgspec.json.encode(items), Share(ByteBudget(1 << 20))) == items
    assert own_items(None, "abc") == []


def test_oldest_items_are_dropped_first() -> None:
    items = _items(
        {"role": "system", "content": "s"},
        {"role": "user", "content": "1"},
        CALL,
        RESULT,
        {"role": "user", "content": "2"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "3"},
    )
    assert possible_cuts(items) == [0, 1, 4, 6]
    assert places_after(items, 4) == [0, 4, 5, 6]
    assert places_after(items, 0) == list(range(7))


def _body(**fields: Any) -> ResponseBody:
    data = {"model": "m", "input": "x", **fields}
    return msgspec.json.decode(json.dumps(data), type=ResponseBody)


NOTHING = BroughtTools([], [])
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}


def test_tools_and_choices() -> None:
    clock = {"type": "function", "name": "clock"}
    offered = tools(_body(tools=[WEATHER, clock], parallel_tool_calls=False), NOTHING)
    assert offered is not None
    definitions = json.loads(offered.definitions)
    assert definitions[0] == {
        "function": {"name": "weather", "parameters": {"type": "object"}},
        "type": "function",
    }
    assert (offered.choice, offered.parallel) == ("auto", False)
    chosen = tools(
        _body(tools=[WEATHER], tool_choice={"type": "function", "name": "weather"}), NOTHING
    )
    assert chosen is not None
    assert (chosen.choice, chosen.name) == ("required", "weather")
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [clock]}
    some = tools(_body(tools=[WEATHER, clock], tool_choice=allowed), NOTHING)
    assert some is not None
    assert [load["function"]["name"] for load in json.loads(some.definitions)] == ["clock"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{}]}]}, "tools[0].tools[0].type"),
        ({"tools": [{"type": "custom", "name": "c", "format": 5}]}, "tools[0].format"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"background": True, "store": False}, "store"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"max_tokens": 5}, "max_tokens"),
    ],
)
def test_unsupported_field_is_refused(fields: dict[str, Any], param: str) -> None:
    def ask() -> None:
        body = _body(**fields)
        check_supported(body, "responses")
        check_body(body)
        body.generation()
        tools(body, NOTHING)

    with pytest.raises(Refusal) as refused:
        ask()
    assert refused.value.param == param
