"""What other servers take, and clients therefore send."""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec import Raw
from starlette.requests import Request

from gateway.config.model import Model
from gateway.config.model_settings import ModelSettings
from gateway.http.anthropic.messages import MessagesBody
from gateway.http.generation.conversation import ConversationBuilder
from gateway.http.generation.generation_body import check_generation, generate_message
from gateway.http.generation.tools import replaced, tools_of
from gateway.http.ollama.bodies import OllamaOptions, generation
from gateway.http.openai.chat import ChatBody, converse
from gateway.http.openai.completions import CompletionBody, parse_inputs
from gateway.http.openai.responses_bodies import ResponseBody, check_body
from gateway.http.openai.responses_bodies import tools as tools_of_response
from gateway.http.openai.responses_conversation import BroughtTools
from gateway.http.wire.bodies import read_json
from gateway.requests.share import SHARE, ByteBudget, Share
from gateway.system.refusal import Refusal
from protocol.requests import ChatMessage, TextPrompt, Tools

T = TypeVar("T", bound=msgspec.Struct)
CLOCK = {"type": "function", "function": {"name": "clock", "description": "Time"}}
LATER = {"type": "function", "function": {"name": "clock", "description": "Local time"}}
ALARM = {"type": "function", "function": {"name": "alarm"}}


def _read(kind: type[T], text: bytes) -> T:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": text, "more_body": False}

    state = {SHARE: Share(ByteBudget(1 << 20), 1 << 20)}
    request = Request({"type": "http", "headers": [], "state": state}, receive)
    return asyncio.run(read_json(request, kind))


def _chat(**fields: Any) -> ChatBody:
    sent = {"model": "m", "messages": [{"role": "user", "content": "?"}], **fields}
    return _read(ChatBody, json.dumps(sent).encode())


def _completion(**fields: Any) -> CompletionBody:
    return _read(CompletionBody, json.dumps({"model": "m", "prompt": "x", **fields}).encode())


# Numbers


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_of_minus_one_is_none(name: str) -> None:
    for body in (_chat(**{name: -1}), _completion(**{name: -1})):
        assert body.limit is None
    # The default of this path is another.
    assert _completion(**{name: -1}).asked_limit == -1
    assert _completion().asked_limit is None


def test_a_limit_of_minus_one_in_the_other_apis() -> None:
    response = _read(ResponseBody, b'{"model": "m", "input": "x", "max_output_tokens": -1}')
    check_body(response)
    assert response.generation().limit is None
    options = _read(OllamaOptions, b'{"num_predict": -1}')
    assert generation(options, Model("m", "m", ModelSettings(path="m")), None).limit is None


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_an_answer_of_no_token_is_refused(name: str) -> None:
    with pytest.raises(Refusal, match="at least 1, or -1") as refused:
        check_generation(_chat(**{name: 0}), "chat")
    assert refused.value.param == name
    with pytest.raises(Refusal):
        _chat(**{name: -2})
    response = _read(ResponseBody, b'{"model": "m", "input": "x", "max_output_tokens": 0}')
    with pytest.raises(Refusal, match="max_output_tokens"):
        check_body(response)


@pytest.mark.parametrize(
    ("written", "number"), [("16.0", 16), ("-3.00", -3), ("1.6E1", 16), ("2e0", 2), ("16", 16)]
)
def test_a_whole_float_is_an_integer(written: str, number: int) -> None:
    text = b'{"model": "16.0 \\" 17.0", "prompt": "x", "temperature": 1.5, "seed": %b}'
    body = _read(CompletionBody, text % written.encode())
    assert (body.seed, type(body.seed)) == (number, int)
    assert (body.model, body.temperature) == ('16.0 " 17.0', 1.5)


def test_whole_floats_of_every_kind_of_number() -> None:
    body = _chat(max_tokens=16.0, n=2.0, top_k=40.0, logit_bias={"5": 1.0}, priority=-2.0)
    assert (body.limit, body.answers, body.top_k, body.priority) == (16, 2, 40, -2)
    sent = {"messages": [{"role": "user", "content": "?"}], "max_tokens": 9.0, "top_k": 2.0}
    message = _read(MessagesBody, json.dumps({"model": "m", **sent}).encode())
    assert (message.max_tokens, message.top_k) == (9, 2)
    assert _read(ResponseBody, b'{"model": "m", "max_output_tokens": 9.0}').max_output_tokens == 9
    assert parse_inputs(Raw(b"[1.0, 2]"), "prompt", 9) == parse_inputs(Raw(b"[1, 2]"), "prompt", 9)


@pytest.mark.parametrize("written", ["16.5", "1e-1", "1e30", "9007199254740993.5", '"16"'])
def test_other_numbers_are_no_integers(written: str) -> None:
    with pytest.raises(Refusal, match="seed: Expected `int"):
        _read(CompletionBody, b'{"model": "m", "prompt": "x", "seed": %b}' % written.encode())


def test_a_top_p_of_0_leaves_the_likeliest_token() -> None:
    generate = generate_message(_chat(top_p=0, top_k=9), TextPrompt("x"), None)
    assert (generate.sampling.top_k, generate.sampling.top_p) == (1, 0.0)
    generate = generate_message(_chat(top_p=0.5, top_k=9), TextPrompt("x"), None)
    assert (generate.sampling.top_k, generate.sampling.top_p) == (9, 0.5)


@pytest.mark.parametrize(
    ("stop", "stops"), [("", ()), (["", "end"], ("end",)), ([""], ()), ("end", ("end",))]
)
def test_an_empty_stop_stops_nothing(stop: Any, stops: tuple[str, ...]) -> None:
    assert generate_message(_chat(stop=stop), TextPrompt("x"), None).stop == stops


# Tools


def _tools(**fields: Any) -> Tools | None:
    body = _chat(**fields)
    return tools_of(body.tools, body.tool_choice, parallel=True)


@pytest.mark.parametrize(
    ("kind", "choice"),
    [("auto", "auto"), ("none", "none"), ("any", "required"), ("required", "required")],
)
def test_a_mode_of_tool_choice_may_be_an_object(kind: str, choice: str) -> None:
    tools = _tools(tools=[CLOCK], tool_choice={"type": kind})
    assert tools is not None
    assert (tools.choice, tools.name) == (choice, None)
    sent = {
        "model": "m",
        "tools": [{"type": "function", "name": "f"}],
        "tool_choice": {"type": kind},
    }
    body = _read(ResponseBody, json.dumps(sent).encode())
    assert body.choice == choice
    offered = tools_of_response(body, BroughtTools([], []))
    assert offered is not None
    assert offered.choice == choice


def test_without_tools_an_object_chooses_as_its_text() -> None:
    assert _tools(tool_choice={"type": "auto"}) is None
    with pytest.raises(Refusal, match="no tools to choose from"):
        _tools(tool_choice={"type": "any"})


def test_of_two_tools_of_one_name_the_later_counts() -> None:
    tools = _tools(tools=[CLOCK, ALARM, LATER])
    assert tools is not None
    assert json.loads(tools.definitions) == [LATER, ALARM]
    assert replaced(["clock", "alarm", "clock", "clock"]) == {"clock"}
    assert replaced(["clock", "alarm"]) == set()


# Messages


def _messages(body: ChatBody) -> list[ChatMessage]:
    conversation = ConversationBuilder(vision=True)
    converse(body.messages, conversation)
    return conversation.messages


@pytest.mark.parametrize("result", [{"content": None}, {}], ids=["null", "absent"])
def test_the_result_of_a_tool_may_be_nothing(result: dict[str, None]) -> None:
    body = _chat(messages=[{"role": "tool", "tool_call_id": "c", **result}])
    [message] = _messages(body)
    assert (message.role, message.content, message.tool_call_id) == ("tool", "", "c")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "reasoning", "reasoning": "Hm."},
        {"type": "reasoning", "text": "Hm."},
    ],
    ids=lambda part: " ".join(part),
)
def test_thoughts_among_the_parts_of_an_assistant(part: dict[str, str]) -> None:
    content = [part, {"type": "text", "text": "Yes."}]
    [message] = _messages(_chat(messages=[{"role": "assistant", "content": content}]))
    assert (message.content, message.reasoning) == ("Yes.", "Hm.")
    with pytest.raises(Refusal, match="content part of type"):
        _messages(_chat(messages=[{"role": "user", "content": content}]))


def test_repeated_thoughts_of_message_count_once() -> None:
    content = [{"type": "thinking", "thinking": "Hm."}]
    sent = {"role": "assistant", "content": content, "reasoning_content": "Hm."}
    [message] = _messages(_chat(messages=[sent]))
    assert (message.content, message.reasoning) == ("", "Hm.")
