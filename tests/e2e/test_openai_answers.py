"""Tools, reasoning and structure by the official OpenAI client, sync and async, streamed or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict

from tests.support.gateway import Gateway

QUESTION = [{"role": "user", "content": "What can you do?"}]


class Weather(BaseModel):
    model_config = ConfigDict(extra="forbid")
    city: Literal["Rome", "Oslo"]
    days: Literal[1, 7]


def _tool(name: str) -> Any:
    parameters = Weather.model_json_schema()
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [_tool("get_weather"), _tool("get_news")]
ASKED: dict[str, Any] = {"model": "demo", "messages": QUESTION, "seed": 4, "max_tokens": 200}


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "get_news"}),
        ({"type": "function", "function": {"name": "get_news"}}, {"get_news"}),
    ],
)
def test_a_call_that_must_be_made(client: openai.OpenAI, choice: Any, names: set[str]) -> None:
    asked = {**ASKED, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content is None
    (call,) = whole.message.tool_calls
    assert call.function.name in names
    Weather.model_validate_json(call.function.arguments)
    name, arguments, reason = "", "", None
    for chunk in client.chat.completions.create(**asked, stream=True):
        for tool_call in chunk.choices[0].delta.tool_calls or ():
            assert tool_call.index == 0
            name += tool_call.function.name or ""
            arguments += tool_call.function.arguments
        reason = chunk.choices[0].finish_reason or reason
    assert (name, arguments, reason) == (call.function.name, call.function.arguments, "tool_calls")


def test_a_conversation_with_calls_goes_on(client: openai.OpenAI) -> None:
    call = {"id": "call_1", "type": "function"}
    call["function"] = {"name": "get_weather", "arguments": '{"city": "Rome", "days": 1}'}
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain"},
    ]
    with_calls = client.chat.completions.create(**{**ASKED, "messages": messages}, tools=TOOLS)
    without = client.chat.completions.create(**{**ASKED, "messages": messages[:1]})
    assert with_calls.usage.prompt_tokens > without.usage.prompt_tokens + 50
    assert with_calls.choices[0].finish_reason in ("stop", "length")


def test_tools_that_are_not_wanted_are_not_called(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASKED, tools=TOOLS, tool_choice="none")
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content


def test_structured_outputs_are_parsed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(**ASKED, response_format=Weather)
    assert isinstance(answer.choices[0].message.parsed, Weather)
    with client.chat.completions.stream(**ASKED, response_format=Weather) as stream:
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert parsed == answer.choices[0].message.parsed


def test_a_schema_that_can_not_be_done_is_refused_by_name(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            **ASKED,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        )
    assert caught.value.param == "response_format"
    assert "nowhere" in caught.value.message


async def test_reasoning_is_apart(gateway: Gateway, client: openai.OpenAI) -> None:
    asked = {**ASKED, "temperature": 0, "extra_body": {"enable_thinking": True}}
    message = client.chat.completions.create(**asked).choices[0].message
    assert message.reasoning_content
    assert message.content
    assert "think>" not in message.content + message.reasoning_content
    reasoning, content = "", ""
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client_:
        async for chunk in await client_.chat.completions.create(**asked, stream=True):
            delta = chunk.choices[0].delta
            reasoning += getattr(delta, "reasoning_content", None) or ""
            content += delta.content or ""
    assert (reasoning, content) == (message.reasoning_content, message.content)
    body = {"enable_thinking": True, "thinking_token_budget": 5}
    usage = client.chat.completions.create(**{**asked, "extra_body": body}).usage
    assert 5 <= usage.completion_tokens_details.reasoning_tokens <= 8
    hidden = {"enable_thinking": True, "include_reasoning": False}
    quiet = client.chat.completions.create(**{**asked, "extra_body": hidden}).choices[0].message
    assert quiet.content == message.content
    assert not hasattr(quiet, "reasoning_content")


@pytest.mark.parametrize("text", ["<|im_end|>", "<tool_call>", "<think>x</think>"])
def test_forced_text_may_look_like_a_special_token(client: openai.OpenAI, text: str) -> None:
    schema = {"type": "object", "properties": {"note": {"const": text}}, "required": ["note"]}
    schema |= {"additionalProperties": False}
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    asked = {**ASKED, "logprobs": True, "top_logprobs": 2}
    answer = client.chat.completions.create(**asked, response_format=format_).choices[0]
    assert answer.finish_reason == "stop"
    assert json.loads(answer.message.content or "") == {"note": text}
    chosen = client.chat.completions.create(**ASKED, extra_body={"guided_choice": [text]})
    assert chosen.choices[0].message.content == text


def test_an_answer_among_choices(client: openai.OpenAI) -> None:
    body = {"guided_choice": ["yes, of course", "no"]}
    answer = client.chat.completions.create(**ASKED, extra_body=body).choices[0]
    assert (answer.message.content in body["guided_choice"], answer.finish_reason) == (True, "stop")
    body = {"guided_regex": "[a-z]{3}-[0-9]{2}"}
    completion = client.completions.create(model="demo", prompt="x", max_tokens=50, extra_body=body)
    assert len(completion.choices[0].text) == 6


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0, 1])
def test_no_prediction_changes_an_answer(client: openai.OpenAI, temperature: int) -> None:
    asked = {**ASKED, "temperature": temperature}
    text = client.chat.completions.create(**asked).choices[0].message.content or ""
    for content in (text, [{"type": "text", "text": f"{text[:20]} and so on"}], "Not at all.", ""):
        prediction = {"type": "content", "content": content}
        answer = client.chat.completions.create(**asked, prediction=prediction)
        assert answer.choices[0].message.content == text
        details = answer.usage.completion_tokens_details
        assert 0 <= details.accepted_prediction_tokens <= answer.usage.completion_tokens
