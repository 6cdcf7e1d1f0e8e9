"""Parts of an answer as OpenAI's response objects and events."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.http.openai.responses import ResponseFamily
from gateway.http.openai.responses_items import CallMeaning
from gateway.http.openai.responses_objects import ResponseObject
from gateway.http.openai.responses_writer import ResponseForm, ResponseFormat
from gateway.http.wire.answer import DONE
from gateway.requests.choices import Choice
from gateway.requests.request import AnswerPiece, Request, Terms
from gateway.system.refusal import Refusal
from protocol.answers import (
    Alternative,
    AnswerPart,
    FinishReason,
    Logprobs,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCall,
    Usage,
    merged,
)
from protocol.requests import Generate, Sampling, SamplingDefaults, TextPrompt

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
USAGE = Usage(10, 5, cached_tokens=4, reasoning_tokens=2)
PARTS: list[AnswerPart] = [
    Reasoning("Hm"),
    Reasoning("."),
    Text("\n"),
    Text("Let me "),
    Text("look."),
    Text("\n"),
    ToolCall(0, "", "weather"),
    ToolCall(0, '{"city": '),
    ToolCall(0, '"Rome"}'),
    ToolCall(1, "{}", "clock"),
]


MEANINGS = {
    "apply_patch": CallMeaning("custom", "apply_patch"),
    "n__look": CallMeaning("function", "look", "n"),
    "n__draw": CallMeaning("custom", "draw", "n"),
    "tool_search": CallMeaning("tool_search", "tool_search"),
    "local_shell": CallMeaning("local_shell", "local_shell"),
}


def _form(*, seals: bool = False) -> ResponseForm:
    response = ResponseObject(
        id=f"resp_{'a' * 32}",
        created_at=1,
        status="in_progress",
        background=False,
        instructions=None,
        max_output_tokens=None,
        metadata={"a": "b"},
        model="m",
        parallel_tool_calls=True,
        previous_response_id=None,
        store=True,
        temperature=1.0,
        text=Raw(b'{"format":{"type":"text"}}'),
        tool_choice=Raw(b'"auto"'),
        tools=Raw(b'[{"type":"function","name":"weather","parameters":{},"strict":true}]'),
        top_logprobs=0,
        top_p=1.0,
        truncation="disabled",
    )
    form = ResponseForm(response, seals, meanings=MEANINGS)
    return msgspec.json.decode(msgspec.json.encode(form), type=ResponseForm)


def _request() -> Request:
    generate = Generate(request_id="r", prompt=TextPrompt("x"), sampling=Sampling(seed=1))
    request = Request(generate, Terms(deadline_s=5.0), now=100.0)
    request.sampling = SamplingDefaults(temperature=0.7, top_p=0.8)
    return request


def _events(data: bytes) -> list[Any]:
    found = []
    for word in data.removesuffix(DONE).decode().split("\n\n")[:-1]:
        kind, text = word.split("\n")
        event = EVENT.validate_python(json.loads(text.removeprefix("data: ")))
        assert kind == f"event: {event.type}"
        found.append(event)
    return found


def _streamed(
    parts: list[AnswerPart], reason: FinishReason = "stop", first_number: int = 0
) -> list[Any]:
    form = ResponseFormat(_form(), _request(), first_number=first_number)
    data = form.opening(0)
    for part in parts:
        data += form.piece(0, AnswerPiece((part,), None, None))
    data += form.piece(0, AnswerPiece((), reason, USAGE))
    data += form.closing(USAGE)
    assert data.endswith(DONE)
    return _events(data)


def _whole(
    parts: list[AnswerPart], reason: FinishReason = "stop", *, seals: bool = False
) -> Response:
    form = ResponseFormat(_form(seals=seals), _request())
    body = form.whole([Choice(merged(parts), reason)], USAGE)
    assert form.body == body
    return Response.model_validate(json.loads(body))


def test_whole_response_is_valid() -> None:
    response = _whole(PARTS, "tool_calls")
    assert [item.type for item in response.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    reasoning, message, first, second = response.output
    assert (reasoning.content[0].text, reasoning.summary) == ("Hm.", [])
    assert response.output_text == "\nLet me look.\n"
    assert message.status == "completed"
    assert (first.name, first.arguments, second.arguments) == ("weather", '{"city": "Rome"}', "{}")
    assert first.call_id != second.call_id
    assert len({item.id for item in response.output}) == 4
    assert (response.status, response.usage.total_tokens) == ("completed", 15)
    assert response.usage.input_tokens_details.cached_tokens == 4
    assert response.usage.output_tokens_details.reasoning_tokens == 2
    assert (response.metadata, response.tools[0].name) == ({"a": "b"}, "weather")
    assert response.completed_at


def test_the_order_of_events() -> None:
    kinds = [item.type.removeprefix("response.") for item in _streamed(PARTS, "tool_calls")]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


TEXTS = st.sampled_from(["", " ", "\n", "a", "é "])
ANSWERS = st.lists(
    st.one_of(
        TEXTS.map(Text),
        st.sampled_from(["x", "y"]).map(Reasoning),
        st.builds(Logprobs, st.just((TokenLogprob(b"a", -0.5),))),
    ),
    max_size=8,
)


@given(parts=ANSWERS, calls=st.integers(0, 2), reason=st.sampled_from(["stop", "length"]))
def test_streamed_and_whole_are_the_same(
    parts: list[AnswerPart], calls: int, reason: FinishReason
) -> None:
    parts = [*parts, *(ToolCall(number, "{}", "f") for number in range(calls))]
    events = _streamed(parts, reason, first_number=7)
    assert [event.sequence_number for event in events] == list(range(7, 7 + len(events)))
    last = events[-1]
    assert last.type == ("response.incomplete" if reason == "length" else "response.completed")
    assert len(last.response.output) >= 1
    whole = _whole(parts, reason)

    def shown(response: Response) -> list[object]:
        return [
            (item.type, item.id, item.status, getattr(item, "arguments", None))
            for item in response.output
        ]

    assert shown(last.response) == shown(whole)
    assert last.response.output_text == whole.output_text
    # What clients put together of deltas is what the last event has.
    items = [event.item.id for event in events if event.type == "response.output_item.done"]
    assert items == [element.id for element in whole.output]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(delta.delta for delta in deltas) == whole.output_text


def test_an_answer_that_its_limit_cuts() -> None:
    response = _whole([Text("Half of")], "length")
    assert (response.status, response.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert response.output[-1].status == "incomplete"
    assert response.completed_at is None


@pytest.mark.parametrize("opened", [False, True])
def test_a_stream_that_fails(opened: bool) -> None:
    form = ResponseFormat(_form(), _request())
    data = b""
    if opened:
        data = form.opening(0) + form.piece(0, AnswerPiece((Text("Half"),), None, None))
    events = _events(data + form.failed(Refusal("worker_crashed", "Two workers died.")))
    assert [events[0].type, events[-1].type] == ["response.created", "response.failed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    error = events[-1].response.error
    assert (error.code, error.type) == ("server_error", "worker_crashed")
    assert events[-1].response.status == "failed"


def test_log_probabilities_go_with_their_texts() -> None:
    token = TokenLogprob(b"Hi", -0.5, (Alternative(b"Ho", -1.0),))
    events = _streamed([Reasoning("x"), Text("Hi"), Logprobs((token,))])
    done = next(event for event in events if event.type == "response.output_text.done")
    assert [logprob.token for logprob in done.logprobs] == ["Hi"]
    assert done.logprobs[0].top_logprobs[0].token == "Ho"
    (part,) = events[-1].response.output[-1].content
    assert [logprob.logprob for logprob in part.logprobs] == [-0.5]


def test_reasoning_is_sealed_for_clients_that_ask() -> None:
    assert _whole([Reasoning("Hm."), Text("Yes")], seals=True).output[0].encrypted_content
    assert _whole([Reasoning("Hm."), Text("Yes")]).output[0].encrypted_content is None


@pytest.mark.parametrize(
    ("code", "known"),
    [
        ("queue_full", "rate_limit_exceeded"),
        ("context_length_exceeded", "invalid_prompt"),
        ("worker_crashed", "server_error"),
    ],
)
def test_mailbox_ends_response(code: Any, known: str) -> None:
    family = ResponseFamily()
    queued = ResponseFormat(_form(), _request()).body
    failed = family.failure(queued, Refusal(code, "Why."))
    response = Response.model_validate(json.loads(failed.body))
    assert (response.status, response.error.code, response.error.type) == ("failed", known, code)
    last = family.last_event(failed, 3)
    assert last.endswith(DONE)
    (event,) = _events(last)
    assert (event.type, event.sequence_number) == ("response.failed", 3)
    cancelled = family.cancellation(queued)
    assert (cancelled.status, json.loads(cancelled.body)["status"]) == ("cancelled", "cancelled")
    begun = _events(family.first_events(queued, 0))
    assert [item.type for item in begun] == ["response.created", "response.queued"]


CALLS: list[AnswerPart] = [
    ToolCall(0, '{"input": "*** ', "apply_patch"),
    ToolCall(0, 'Begin\\n"'),
    ToolCall(0, "}"),
    ToolCall(1, "{}", "n__look"),
    ToolCall(2, '{"drawing": "o"}', "n__draw"),
    ToolCall(3, '{"query": "x"}', "tool_search"),
    ToolCall(4, '{"command": ["ls"]}', "local_shell"),
]


def test_calls_of_other_kinds_are_written() -> None:
    patch, look, draw, search, shell = _whole(CALLS, "tool_calls").output
    assert (patch.type, patch.name, patch.input) == (
        "custom_tool_call",
        "apply_patch",
        "*** Begin\n",
    )
    assert (look.type, look.name, look.namespace) == ("function_call", "look", "n")
    assert (draw.type, draw.name, draw.namespace, draw.input) == (
        "custom_tool_call",
        "draw",
        "n",
        "o",
    )
    assert (search.type, search.execution, search.arguments) == (
        "tool_search_call",
        "client",
        {"query": "x"},
    )
    assert (shell.type, shell.action.command) == ("local_shell_call", ["ls"])
    assert len({item.call_id for item in (patch, look, draw, search, shell)}) == 5


def test_events_of_calls_of_other_kinds() -> None:
    events = _streamed(CALLS, "tool_calls")
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[2:7] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    # Which has another name for it: what it is shows at the end.
    assert kinds[11:15] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    assert kinds[15:] == ["output_item.added", "output_item.done"] * 2 + ["completed"]
    whole = _whole(CALLS, "tool_calls")
    assert [item.to_dict() for item in events[-1].response.output] == [
        item.to_dict() for item in whole.output
    ]
    deltas = [event.delta for event in events if event.type.endswith("call_input.delta")]
    assert deltas == ["*** ", "Begin\n", "o"]


@pytest.mark.parametrize("name", ["apply_patch", "tool_search", "local_shell"])
def test_a_call_that_its_limit_cuts(name: str) -> None:
    (call,) = _whole([ToolCall(0, '{"input": "ha', name)], "length").output
    assert call.status == "incomplete"
    assert getattr(call, "input", "ha") == "ha"
