"""The official Anthropic client, unmodified, against a running gateway."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.gateway import Gateway

if TYPE_CHECKING:
    # Its import takes four seconds of every process that collects the tests.
    import anthropic

ASKED: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 120,
    "messages": [{"role": "user", "content": "What can you do?"}],
}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"name": "get_weather", "description": "Of a city", "input_schema": SCHEMA}
# Which the client doesn't send by itself any more.
GREEDY = {"temperature": 0}
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture(scope="module")
def gateway(own_gateway: Gateway) -> Gateway:
    return own_gateway


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as client:
        yield client


def test_streamed_and_whole_are_the_same(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**ASKED, extra_body=GREEDY)
    assert (whole.type, whole.role, whole.stop_reason) == ("message", "assistant", "end_turn")
    (block,) = whole.content
    assert block.text.startswith("You can ask me")
    with client.messages.stream(**ASKED, extra_body=GREEDY) as stream:
        events = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert [item.text for item in streamed.content] == [block.text]
    assert streamed.stop_reason == "end_turn"
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert [events[0], events[-1]] == ["message_start", "message_stop"]
    read = streamed.usage.cache_read_input_tokens + streamed.usage.input_tokens
    counted = client.messages.count_tokens(model="demo", messages=ASKED["messages"])
    assert counted.input_tokens == read


def test_a_system_prompt_counts(client: anthropic.Anthropic) -> None:
    plain = client.messages.count_tokens(model="demo", messages=ASKED["messages"])
    blocks: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    for system in ("Be brief.", blocks):
        more = client.messages.count_tokens(
            model="demo", messages=ASKED["messages"], system=system, tools=[TOOL]
        )
        assert more.input_tokens > plain.input_tokens


def test_limits_and_stop_sequences(client: anthropic.Anthropic) -> None:
    short = client.messages.create(**{**ASKED, "max_tokens": 3}, extra_body=GREEDY)
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 3)
    asked = {**ASKED, "extra_body": GREEDY, "stop_sequences": ["never", "what happens"]}
    stopped = client.messages.create(**asked)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "what happens")
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert (streamed.stop_reason, streamed.stop_sequence) == ("stop_sequence", "what happens")
    assert [item.text for item in streamed.content] == [item.text for item in stopped.content]


def test_more_than_the_context_may_be_asked_for(client: anthropic.Anthropic) -> None:
    """Claude Code asks for so much, whatever the context is."""
    asked = {**ASKED, "max_tokens": 32_000}
    answer = client.messages.create(**asked, extra_body=GREEDY, timeout=120)
    assert answer.stop_reason == "end_turn"


def test_thinking_has_blocks_of_its_own(client: anthropic.Anthropic) -> None:
    asked = {**ASKED, "max_tokens": 2000, "extra_body": GREEDY, "thinking": THINKING}
    thinking, text = client.messages.create(**asked).content
    assert (thinking.type, text.type) == ("thinking", "text")
    assert thinking.thinking
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message().content
    assert [streamed[0].thinking, streamed[1].text] == [thinking.thinking, text.text]
    # As clients send it back.
    messages = [
        *ASKED["messages"],
        {"role": "assistant", "content": [thinking.to_dict(), text.to_dict()]},
        {"role": "user", "content": "Thanks"},
    ]
    assert client.messages.create(**{**ASKED, "messages": messages}).content


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_tools(client: anthropic.Anthropic, choice: Any) -> None:
    asked = {**ASKED, "tools": [TOOL], "tool_choice": {**choice, "disable_parallel_tool_use": True}}
    asked["extra_body"] = GREEDY
    answer = client.messages.create(**asked)
    (call,) = answer.content
    assert (answer.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "get_weather")
    assert call.input["city"] in ("Rome", "Oslo")
    with client.messages.stream(**asked) as stream:
        (streamed,) = stream.get_final_message().content
    assert (streamed.name, streamed.input) == (call.name, call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain", "is_error": False}
    messages = [
        *ASKED["messages"],
        {"role": "assistant", "content": [call.to_dict()]},
        {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
    ]
    assert client.messages.create(**{**ASKED, "messages": messages}, tools=[TOOL]).content


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_tokens": -2}, "max_tokens"),
        ({"messages": [{"role": "assistant", "content": "I "}]}, "white space"),
        ({"messages": [{"role": "king", "content": "I"}]}, "role"),
        ({"messages": [{"role": "user", "content": "a " * 50_000}]}, "prompt is too long"),
        ({"tool_choice": {"type": "any"}}, "there are no tools"),
    ],
)
def test_errors_name_the_wrong_field(
    client: anthropic.Anthropic, changes: dict[str, Any], said: str
) -> None:
    import anthropic

    with pytest.raises(anthropic.BadRequestError, match=said) as caught:
        client.messages.create(**{**ASKED, **changes})
    error = caught.value.body["error"]  # type: ignore[index, call-overload]
    assert error["type"] == "invalid_request_error"


def test_an_answer_of_no_tokens_keeps_the_prompt(client: anthropic.Anthropic) -> None:
    asked: Any = {"model": "demo", "system": "Keep this in mind. " * 100}
    asked["messages"] = [{"role": "user", "content": "And this."}]
    kept = client.messages.create(**asked, max_tokens=0)
    assert (kept.content, kept.stop_reason, kept.usage.output_tokens) == ([], "max_tokens", 0)
    answer = client.messages.create(**asked, max_tokens=2)
    assert (answer.usage.cache_read_input_tokens or 0) > 0


def test_a_session_finds_what_another_computed(client: anthropic.Anthropic) -> None:
    """Claude Code begins with a line about its bill, which is another one in each."""

    def ask(version: str, text: str) -> anthropic.types.Usage:
        bill = f"x-anthropic-billing-header: cc_version={version}; cc_entrypoint=cli;"
        system: Any = [{"type": "text", "text": text} for text in (bill, "Be exact. " * 100)]
        messages: Any = [{"role": "user", "content": text}]
        return client.messages.create(
            model="demo", max_tokens=2, system=system, messages=messages
        ).usage

    first, second = ask("2.1.197.1c0", "Hello"), ask("2.1.197.f3e", "Good morning")
    assert first.cache_read_input_tokens == 0
    assert second.cache_read_input_tokens > first.input_tokens - 2 * 64


def test_counts_what_is_longer_than_the_context(client: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": "a " * 20_000}]
    counted = client.messages.count_tokens(model="demo", messages=messages)
    assert counted.input_tokens > 4096


def test_tools_that_are_too_long_are_to_blame(gateway: Gateway) -> None:
    function = {"name": "f", "description": "x " * 20_000}
    tools = [{"type": "function", "function": function}]
    error = gateway.chat("Hello", tools=tools).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "tools")
    assert "tools" in error["message"]


def test_lists_models(client: anthropic.Anthropic) -> None:
    page = client.models.list()
    assert [
        (model_info.id, model_info.type, model_info.display_name) for model_info in page.data
    ] == [("demo", "model", "demo")]
    assert page.has_more is False
    assert client.models.retrieve("demo").created_at.year > 2000


def test_as_a_coding_agent_asks(client: anthropic.Anthropic) -> None:
    """With everything that one sends beside its question, of which much is for Anthropic's own."""
    cached = {"cache_control": {"type": "ephemeral"}}
    tools: Any = [{**TOOL, "name": f"tool_{number}"} for number in range(16)]
    tools[-1] |= cached
    asked: dict[str, Any] = {
        "model": "demo",
        "max_tokens": 200,
        "system": [
            {"type": "text", "text": "You are an agent."},
            {"type": "text", "text": "Be brief.", **cached},
        ],
        "tools": tools,
        "thinking": {"type": "adaptive"},
        "metadata": {"user_id": "somebody"},
        "extra_query": {"beta": "true"},
        "extra_headers": {"anthropic-beta": "context-management-2025-06-27,effort-2025-11-24"},
        "extra_body": {
            "temperature": 0,
            "output_config": {"effort": "medium"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        },
    }
    document = {"type": "text", "media_type": "text/plain", "data": "It rains."}
    content = [
        {"type": "text", "text": "What do you see?", **cached},
        {"type": "document", "title": "Weather", "source": document},
    ]
    messages: Any = [{"role": "user", "content": content}]
    with client.messages.stream(**asked, messages=messages) as stream:
        kinds = [event.type for event in stream]
        first = stream.get_final_message()
    assert kinds[0] == "message_start"
    messages += [
        {"role": "assistant", "content": [item.to_dict() for item in first.content]},
        {"role": "user", "content": [{"type": "text", "text": "And now?", **cached}]},
    ]
    with client.messages.stream(**asked, messages=messages) as stream:
        second = stream.get_final_message()
    # Of the first turn nothing is computed again.
    assert second.usage.cache_read_input_tokens > first.usage.input_tokens / 2
    assert second.usage.cache_creation_input_tokens == 0


def test_blocks_that_nobody_knows(client: anthropic.Anthropic) -> None:
    """Of Anthropic's servers, or of a time to come."""
    import anthropic

    found = {"type": "web_search_result", "title": "Rain", "url": "http://a.b", "page_age": None}
    assistants: Any = [
        {"type": "redacted_thinking", "data": "AAAA"},
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "?"}},
        {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [found]},
        {"type": "text", "text": "It rains."},
    ]
    users: Any = [{"type": "container_upload", "file_id": "f"}, {"type": "video"}]
    messages: Any = [
        *ASKED["messages"],
        {"role": "assistant", "content": assistants},
        {"role": "user", "content": users},
    ]
    asked: Any = {**ASKED, "max_tokens": 2, "messages": messages}
    raw = client.messages.with_raw_response.create(**asked)
    left_out = "container_upload, redacted_thinking, server_tool_use, video"
    assert raw.headers["x-bulkhead-left-out"] == left_out
    assert raw.parse().usage.output_tokens
    users.append({"type": "image", "source": {"type": "file", "file_id": "f"}})
    with pytest.raises(anthropic.BadRequestError, match="Invalid value 'file'"):
        client.messages.create(**asked)


PDF: Any = {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}
PICTURE: Any = {"type": "url", "url": "http://a.b/c"}
WEB_SEARCH: Any = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}


@pytest.mark.parametrize("inside", [False, True], ids=["of the user", "in a result"])
@pytest.mark.parametrize(
    ("block", "kind"),
    [
        ({"type": "image", "source": PICTURE}, "image"),
        ({"type": "document", "source": PDF, "title": "Plan"}, "document"),
    ],
)
def test_unreadable_picture_is_reported(
    client: anthropic.Anthropic, block: Any, kind: str, inside: bool
) -> None:
    """The answer says so in a header, and the conversation goes on."""
    messages: Any = ASKED["messages"]
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}}
    if inside:
        block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [block]}
        messages = [*messages, {"role": "assistant", "content": [call]}]
    messages = [*messages, {"role": "user", "content": [block]}]
    asked = {**ASKED, "max_tokens": 2, "messages": messages}
    raw = client.messages.with_raw_response.create(**asked)
    assert raw.headers["x-bulkhead-left-out"] == kind
    went_on = [*messages, {"role": "assistant", "content": "I see."}, *ASKED["messages"]]
    with client.messages.stream(**{**asked, "messages": went_on}) as stream:
        assert stream.response.headers["x-bulkhead-left-out"] == kind
        assert stream.get_final_message().usage.output_tokens
    assert client.messages.count_tokens(model="demo", messages=went_on).input_tokens


@pytest.mark.parametrize(
    "choice", [None, {"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "web_search"}]
)
def test_anthropics_server_tools_are_left_out_and_named(
    client: anthropic.Anthropic, choice: Any
) -> None:
    """As Claude Code's search for the web asks for it."""
    toolset = {"type": "mcp_toolset", "mcp_server_name": "far"}
    servers = {"mcp_servers": [{"type": "url", "url": "http://a.b", "name": "far"}]}
    asked: Any = {**ASKED, "max_tokens": 2, "extra_body": {"tool_choice": choice}}
    alone = client.messages.with_raw_response.create(**asked, tools=[WEB_SEARCH])
    assert alone.headers["x-bulkhead-left-out"] == "web_search_20250305"
    plain = client.messages.with_raw_response.create(**ASKED | {"max_tokens": 2})
    assert "x-bulkhead-left-out" not in plain.headers
    assert alone.parse().usage.input_tokens == plain.parse().usage.input_tokens
    if choice is not None and choice["type"] == "any":
        return
    asked["extra_body"] |= servers
    both = client.messages.with_raw_response.create(**asked, tools=[toolset, WEB_SEARCH, TOOL])
    left_out = "mcp_servers, mcp_toolset, web_search_20250305"
    assert both.headers["x-bulkhead-left-out"] == left_out
    asked["tools"] = [{"type": f"made_up_{number}"} for number in range(1000)]
    many = client.messages.with_raw_response.create(**asked)
    assert len(many.headers["x-bulkhead-left-out"].split(", ")) == 32


def test_a_deferred_tool_is_told_where_a_result_refers_to_it(client: anthropic.Anthropic) -> None:
    """As Claude's ToolSearch does it: what comes before stays as it was computed."""
    import anthropic

    search: Any = {"name": "ToolSearch", "description": "Find. " * 60, "input_schema": SCHEMA}
    later: Any = {**TOOL, "defer_loading": True}
    other: Any = {**later, "name": "get_time", "description": "Never. " * 300}
    call = {"type": "tool_use", "id": "toolu_1", "name": "ToolSearch", "input": {"query": "w"}}
    reference = {"type": "tool_reference", "tool_name": "get_weather"}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [reference]}
    referred: Any = [
        *ASKED["messages"],
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]

    def ask(tools: Any, messages: Any, **fields: Any) -> anthropic.types.Message:
        return client.messages.create(
            model="demo", max_tokens=60, messages=messages, tools=tools, **fields
        )

    before = ask([search], ASKED["messages"]).usage
    assert before.cache_read_input_tokens == 0
    # In front of the others, where Claude Code has them by their names.
    found = ask(
        [later, other, search], referred, tool_choice={"type": "tool", "name": TOOL["name"]}
    )
    assert found.usage.cache_read_input_tokens > before.input_tokens - 2 * 64
    (called,) = [block for block in found.content if block.type == "tool_use"]
    assert called.name == "get_weather"
    told = client.messages.count_tokens(model="demo", messages=referred, tools=[later, search])
    untold = client.messages.count_tokens(model="demo", messages=referred, tools=[search])
    assert told.input_tokens > untold.input_tokens
    with pytest.raises(anthropic.BadRequestError, match="no function 'get_time'"):
        ask([later, other, search], referred, tool_choice={"type": "tool", "name": "get_time"})


def test_unknown_models_are_not_found(client: anthropic.Anthropic) -> None:
    import anthropic

    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(**{**ASKED, "model": "claude-none"})
    assert caught.value.body["error"]["type"] == "not_found_error"  # type: ignore[index, call-overload]
    assert caught.value.request_id == caught.value.response.headers["x-request-id"]


@pytest.mark.slow
def test_a_worker_that_dies_in_mid_answer(client: anthropic.Anthropic, gateway: Gateway) -> None:
    asked = {**ASKED, "extra_body": GREEDY, "max_tokens": 2000, "thinking": THINKING}
    whole = client.messages.create(**asked)
    killed = False
    with client.messages.stream(**asked) as stream:
        for event in stream:
            if not killed and event.type == "content_block_delta":
                killed = True
                os.kill(gateway.worker_pid(), signal.SIGKILL)
        final = stream.get_final_message()
    assert killed
    assert [item.to_dict() for item in final.content] == [item.to_dict() for item in whole.content]
