"""Parts of an answer as OpenAI's chat objects."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion_usage import CompletionTokensDetails

from gateway.config.model_settings import ReasoningFields
from gateway.http.openai.chat_writer import ChatForm, ChatFormat
from gateway.requests.choices import Choice
from gateway.requests.request import AnswerPiece, Request, Terms
from protocol.answers import (
    Alternative,
    AnswerPart,
    FinishReason,
    Guesses,
    Logprobs,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCall,
    Usage,
    merged,
)
from protocol.requests import Generate, Sampling, TextPrompt

PARTS: list[AnswerPart] = [
    Reasoning("Hm"),
    Reasoning("."),
    Text("Let me "),
    Text("look."),
    ToolCall(0, "", "weather"),
    ToolCall(0, '{"city": '),
    ToolCall(0, '"Rome"}'),
    ToolCall(1, "{}", "clock"),
]
LOGPROBS = Logprobs((TokenLogprob(b"\xc3", -0.5, (Alternative(b"a", -1.0),)),))


def _format(
    *, include_reasoning: bool = True, reasoning_fields: ReasoningFields = "both"
) -> ChatFormat:
    generate = Generate(request_id="r", prompt=TextPrompt("x"), sampling=Sampling(seed=1))
    request = Request(generate, Terms(deadline_s=5.0), now=100.0)
    request.progress.next_message("0123456789abcdef")
    return ChatFormat(ChatForm("m", 1, False, include_reasoning, reasoning_fields), request)


def _chunks(events: bytes) -> list[ChatCompletionChunk]:
    lines = [word.removeprefix("data: ") for word in events.decode().split("\n\n") if word]
    return [ChatCompletionChunk.model_validate(json.loads(line)) for line in lines]


def _whole(form: ChatFormat, parts: list[AnswerPart], reason: FinishReason) -> ChatCompletion:
    body = form.whole([Choice(merged(parts), reason)], Usage(1, 2))
    return ChatCompletion.model_validate(json.loads(body), strict=True)


def _assembled(chunks: list[ChatCompletionChunk]) -> dict[str, Any]:
    """As clients put an answer together."""
    found: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        found["content"] += choice.delta.content or ""
        found["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or ():
            if call.id is not None:
                assert call.type == "function"
                found["calls"][call.index] = [call.id, call.function.name, ""]
            found["calls"][call.index][2] += call.function.arguments
    return found


@pytest.mark.parametrize("step", range(1, len(PARTS) + 1))
def test_streamed_and_whole_are_the_same(step: int) -> None:
    form = _format()
    events = form.opening(0)
    for begin in range(0, len(PARTS), step):
        events += form.piece(0, AnswerPiece(tuple(merged(PARTS[begin : begin + step])), None, None))
    events += form.piece(0, AnswerPiece((), "tool_calls", Usage(1, 2)))
    chunks = _chunks(events)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert chunks[0].system_fingerprint == "fp_0123456789ab"
    whole = _whole(form, PARTS, "tool_calls")
    message = whole.choices[0].message
    assert message.reasoning_content == message.reasoning == "Hm."
    found = _assembled(chunks)
    assert (found["content"], found["reasoning"]) == (message.content, "Hm.")
    calls = [
        [tool_call.id, tool_call.function.name, tool_call.function.arguments]
        for tool_call in message.tool_calls
    ]
    assert list(found["calls"].values()) == calls
    assert [call[1:] for call in calls] == [["weather", '{"city": "Rome"}'], ["clock", "{}"]]
    assert calls[0][0] != calls[1][0]


def test_calls_alone_have_no_content() -> None:
    message = _whole(_format(), PARTS[4:], "tool_calls").choices[0].message
    assert (message.content, message.refusal) == (None, None)
    message = _whole(_format(), [], "stop").choices[0].message
    assert (message.content, message.tool_calls) == ("", None)
    assert not hasattr(message, "reasoning")


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_may_have_one_name(name: ReasoningFields) -> None:
    form = _format(reasoning_fields=name)
    (event,) = _chunks(form.piece(0, AnswerPiece((Reasoning("Hm"),), None, None)))
    (choice,) = event.choices
    assert choice.delta.model_extra == {name: "Hm"}
    assert _whole(form, PARTS, "stop").choices[0].message.model_extra == {name: "Hm."}


def test_reasoning_can_be_left_out() -> None:
    form = _format(include_reasoning=False)
    assert not hasattr(_whole(form, PARTS, "stop").choices[0].message, "reasoning")
    assert form.piece(0, AnswerPiece((Reasoning("Hm"),), None, None)) == b""


def test_calls_of_different_answers_have_different_ids() -> None:
    one, other = (_whole(_format(), PARTS, "stop").choices[0].message for _ in range(2))
    assert one.tool_calls[0].id != other.tool_calls[0].id


@pytest.mark.parametrize("parts", [(LOGPROBS,), (Text("a"), LOGPROBS)])
def test_chat_logprobs_have_openais_form(parts: tuple[AnswerPart, ...]) -> None:
    form = _format()
    (chunk,) = _chunks(form.piece(0, AnswerPiece(parts, None, None)))
    whole = _whole(form, list(parts), "stop").choices[0].logprobs
    assert chunk.choices[0].logprobs.model_dump() == whole.model_dump()
    (token,) = whole.content
    assert (token.token, token.bytes, token.logprob) == ("bytes:\\xc3", [0xC3], -0.5)
    assert (token.top_logprobs[0].token, token.top_logprobs[0].bytes) == ("a", [97])


def test_guesses_have_the_names_of_openai() -> None:
    usage = Usage(1, 9, guesses=Guesses(5, 2))
    body = json.loads(_format().whole([Choice([Text("a")], "stop")], usage))
    details = ChatCompletion.model_validate(body, strict=True).usage.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (5, 2)
    assert body["usage"]["completion_tokens"] == 9
    known = set(CompletionTokensDetails.model_fields)
    assert set(body["usage"]["completion_tokens_details"]) <= known
