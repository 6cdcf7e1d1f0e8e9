"""The Responses of the official OpenAI client, unmodified, against a running gateway."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest

from tests.support.gateway import START_S, Gateway, eventually
from tests.support.pictures import RED, data_url, png

QUESTION = "What is Bulkhead?"
LONG: dict[str, Any] = {
    "model": "demo",
    "input": "Tell me a story.",
    "background": True,
    "max_output_tokens": 3000,
    "extra_body": {"ignore_eos": True},
}
GREEDY: dict[str, Any] = {"model": "demo", "temperature": 0}
# Its first sentence.
BRIEF: dict[str, Any] = {**GREEDY, "extra_body": {"stop": [" It runs"]}}
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture(scope="module")
def gateway(own_gateway: Gateway) -> Gateway:
    return own_gateway


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def whole(client: openai.OpenAI) -> Any:
    def stored() -> Any:
        """A disk that has much else to write may keep the mailbox from being opened for a while."""
        response = client.responses.create(**BRIEF, input=QUESTION, metadata={"a": "b"})
        assert response.status == "completed"
        assert response.output_text
        with contextlib.suppress(openai.APIStatusError):
            client.responses.retrieve(response.id)
            return response

    return eventually(stored)


def _ended(client: openai.OpenAI, response_id: str) -> Any:
    def found() -> Any:
        response = client.responses.retrieve(response_id)
        return response if response.status not in ("queued", "in_progress") else None

    return eventually(found)


@pytest.mark.parametrize("form", ["whole", "stream", "background"])
def test_prewarming_keeps_the_prompt_and_says_nothing(client: openai.OpenAI, form: str) -> None:
    asked: Any = {**GREEDY, "instructions": f"For the {form}: " + "keep this in mind. " * 100}
    asked["input"] = "Hello"
    warming: Any = {**asked, "prompt_cache_options": {"prewarm": True}}
    if form == "stream":
        with client.responses.stream(**warming) as stream:
            events = [item.type for item in stream]
            kept = stream.get_final_response()
        assert events == ["response.created", "response.in_progress", "response.completed"]
    else:
        kept = client.responses.create(**warming, background=form == "background")
        kept = _ended(client, kept.id) if form == "background" else kept
    assert (kept.status, kept.output) == ("completed", [])
    assert kept.usage is not None
    assert kept.usage.output_tokens == 0
    answer = client.responses.create(**asked, max_output_tokens=2)
    assert answer.usage is not None
    assert answer.usage.input_tokens_details.cached_tokens > 0
    assert answer.usage.input_tokens == kept.usage.input_tokens


def test_streams_the_same_text(client: openai.OpenAI, whole: Any) -> None:
    messages = [
        {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
    ]
    with client.responses.stream(**BRIEF, input=messages) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}


def test_a_conversation_goes_on_from_a_response(client: openai.OpenAI, whole: Any) -> None:
    assert client.responses.retrieve(whole.id).to_dict() == whole.to_dict()
    more = client.responses.create(**BRIEF, input="What else?", previous_response_id=whole.id)
    by_hand = client.responses.create(
        **BRIEF,
        input=[
            {"role": "user", "content": QUESTION},
            *whole.output,
            {"role": "user", "content": "What else?"},
        ],
    )
    assert more.output_text == by_hand.output_text
    assert more.usage.input_tokens == by_hand.usage.input_tokens > whole.usage.input_tokens
    named = client.responses.create(
        **BRIEF,
        input=[
            {"role": "user", "content": QUESTION},
            {"type": "item_reference", "id": whole.output[0].id},
            {"role": "user", "content": "What else?"},
        ],
    )
    assert named.output_text == more.output_text
    items = list(client.responses.input_items.list(more.id, order="asc", limit=2))
    assert [item.role for item in items] == ["user", "assistant", "user"]
    assert [item.id for item in client.responses.input_items.list(more.id)] == [
        item.id for item in reversed(items)
    ]


def test_prompts_are_counted(client: openai.OpenAI, whole: Any) -> None:
    def counted(**fields: Any) -> int:
        return client.responses.input_tokens.count(model="demo", **fields).input_tokens

    assert counted(input=QUESTION) == whole.usage.input_tokens
    assert counted(input=QUESTION, instructions="Be brief.") > whole.usage.input_tokens
    assert counted(input="x", previous_response_id=whole.id) > whole.usage.input_tokens


def test_unstored_response_is_not_found(client: openai.OpenAI, whole: Any) -> None:
    response = client.responses.create(**BRIEF, input=QUESTION, store=False, max_output_tokens=2)
    assert response.store is False
    for ask in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            ask(response.id)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(**BRIEF, input="x", previous_response_id=response.id)
    deleted = client.responses.create(**BRIEF, input=QUESTION, max_output_tokens=2)
    client.responses.delete(deleted.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(deleted.id)


def test_tools(client: openai.OpenAI) -> None:
    asked = {**GREEDY, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    response = client.responses.create(**asked, input="Weather?")
    (call,) = response.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    with client.responses.stream(**asked, input="Weather?") as stream:
        kinds = {item.type for item in stream}
        (streamed,) = stream.get_final_response().output
    assert "response.function_call_arguments.delta" in kinds
    assert (streamed.name, streamed.arguments) == (call.name, call.arguments)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain"}
    after = client.responses.create(
        **GREEDY, tools=[TOOL], input=[output], previous_response_id=response.id
    )
    assert after.usage.input_tokens > response.usage.input_tokens


def test_structure(client: openai.OpenAI) -> None:
    class Weather(pydantic.BaseModel):
        city: Literal["Rome", "Oslo"]

    parsed = client.responses.parse(**GREEDY, input="Weather?", text_format=Weather)
    assert parsed.output_parsed.city in ("Rome", "Oslo")


def test_reasoning_has_items_of_its_own(client: openai.OpenAI) -> None:
    asked = {
        **GREEDY,
        "input": "What can you do?",
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "extra_body": {"enable_thinking": True},
    }
    response = client.responses.create(**asked)
    reasoning, message = response.output
    assert (reasoning.type, message.type) == ("reasoning", "message")
    assert reasoning.content[0].text
    assert response.usage.output_tokens_details.reasoning_tokens
    stream = client.responses.create(**asked, stream=True)
    deltas = [item.delta for item in stream if item.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == reasoning.content[0].text
    # As clients send it back, who may not have looked at it.
    sealed = {**reasoning.to_dict(), "content": None}
    items = [{"role": "user", "content": "What can you do?"}, sealed, message.to_dict()]
    again = {"role": "user", "content": "Thanks"}
    assert client.responses.create(**{**asked, "input": [*items, again]}).output_text


def test_limits_and_log_probabilities(client: openai.OpenAI) -> None:
    short = client.responses.create(
        **GREEDY,
        input=QUESTION,
        max_output_tokens=3,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    (part,) = short.output[0].content
    assert len(part.logprobs) == short.usage.output_tokens == 3
    assert all(len(logprob.top_logprobs) == 2 for logprob in part.logprobs)


@pytest.mark.slow
def test_items_that_do_not_fit_can_be_dropped(client: openai.OpenAI, whole: Any) -> None:
    """A quarter of a small context is left for an answer, also for one that may be longer."""
    turns: list[Any] = []
    for number in range(8):
        turns.append({"role": "user", "content": f"{number} " + "word " * 600})
        turns.append({"role": "assistant", "content": "Yes."})
    asked = {**BRIEF, "input": [*turns, {"role": "user", "content": QUESTION}]}
    asked["max_output_tokens"] = 4000
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**asked)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    cut = client.responses.create(**asked, truncation="auto")
    assert cut.truncation == "auto"
    assert 4 * 600 < cut.usage.input_tokens <= 3 * 1024
    asked["input"] = QUESTION
    assert client.responses.create(**asked, truncation="auto").output_text == whole.output_text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": "x", "tools": [{"name": "f"}]}, "tools[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, None),
        ({"input": "x", "background": True, "store": False}, "store"),
        ({"input": "word " * 50_000}, "input"),
        ({"input": []}, "input"),
        ({"input": "x", "conversation": "conv_1"}, "conversation"),
        ({"input": "x", "extra_headers": {"X-Mailbox": "keep"}}, "X-Mailbox"),
    ],
)
def test_errors_name_the_wrong_field(client: openai.OpenAI, fields: Any, param: str | None) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model="demo", stream=stream, **fields)
        assert refused.value.param == (param or "input[0].content[0]")


def test_pictures_of_earlier_messages_are_told(client: openai.OpenAI) -> None:
    picture = {"type": "input_image", "image_url": data_url(png(RED))}
    shown: Any = {"role": "user", "content": [{"type": "input_text", "text": "?"}, picture]}
    answered: Any = {"role": "assistant", "content": "Red."}
    asked: Any = {"model": "demo", "max_output_tokens": 16, "store": False}
    for items in ([shown, {"role": "user", "content": "Hi"}], [shown, answered]):
        raw = client.responses.with_raw_response.create(**asked, input=items)
        assert raw.headers["x-bulkhead-left-out"] == "image"
        assert raw.parse().usage.output_tokens
    with pytest.raises(openai.BadRequestError, match="pictures = true") as caught:
        client.responses.create(**asked, input=[answered, shown])
    assert caught.value.param == "input[1].content[1].image_url"


def test_a_background_response_is_fetched_later(client: openai.OpenAI, whole: Any) -> None:
    queued = client.responses.create(**BRIEF, input=QUESTION, background=True)
    assert (queued.status, queued.background, queued.output) == ("queued", True, [])
    response = _ended(client, queued.id)
    assert (response.status, response.output_text) == ("completed", whole.output_text)
    assert client.responses.cancel(queued.id).to_dict() == response.to_dict(), "it stays as it is"
    with pytest.raises(openai.BadRequestError, match="stream"):
        client.responses.retrieve(queued.id, stream=True)
    short = client.responses.create(**BRIEF, input="x", background=True, max_output_tokens=2)
    assert _ended(client, short.id).status == "incomplete"


def test_a_background_response_that_fails_says_why(client: openai.OpenAI) -> None:
    queued = client.responses.create(**BRIEF, input="word " * 50_000, background=True)
    response = _ended(client, queued.id)
    assert (response.status, response.error.code) == ("failed", "invalid_prompt")
    assert response.error.type == "context_length_exceeded"


def test_a_background_stream_goes_on_after_any_event(client: openai.OpenAI, whole: Any) -> None:
    asked = {**BRIEF, "input": QUESTION, "background": True, "stream": True}
    seen = []
    with client.responses.create(**asked) as stream:
        for event in stream:
            seen.append(event)
            if len(seen) == 6:
                break
    assert [item.type for item in seen[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    response_id, last = seen[0].response.id, seen[-1].sequence_number
    rest = list(client.responses.retrieve(response_id, stream=True, starting_after=last))
    numbers = [item.sequence_number for item in [*seen, *rest]]
    assert numbers == list(range(len(numbers)))
    deltas = [e.delta for e in [*seen, *rest] if e.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert rest[-1].type == "response.completed"
    # Also when it is over.
    again = list(client.responses.retrieve(response_id, stream=True, starting_after=last))
    assert [item.to_dict() for item in again] == [item.to_dict() for item in rest]


def test_a_background_response_is_cancelled(client: openai.OpenAI, gateway: Gateway) -> None:
    with client.responses.create(**LONG, stream=True) as stream:
        response_id = next(iter(stream)).response.id
        assert next(item for item in stream if item.type == "response.output_text.delta").delta
        running = client.responses.retrieve(response_id)
    assert running.status == "in_progress"
    with pytest.raises(openai.BadRequestError, match="wait until it is completed"):
        client.responses.create(**GREEDY, input="x", previous_response_id=running.id)
    assert client.responses.cancel(running.id).status == "cancelled"
    assert client.responses.cancel(running.id).status == "cancelled"
    assert client.responses.retrieve(running.id).status == "cancelled"
    eventually(lambda: gateway.model()["active_requests"] == 0)


def test_only_background_responses_are_cancelled(client: openai.OpenAI, whole: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(whole.id)


def test_a_running_one_is_deleted(client: openai.OpenAI, gateway: Gateway) -> None:
    queued = client.responses.create(**LONG)
    eventually(lambda: client.responses.retrieve(queued.id).status == "in_progress", START_S)
    client.responses.delete(queued.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(queued.id)
    eventually(lambda: gateway.model()["active_requests"] == 0)


@pytest.mark.slow
def test_a_worker_that_dies_in_mid_answer(client: openai.OpenAI, gateway: Gateway) -> None:
    undisturbed = client.responses.create(**GREEDY, input=QUESTION)
    killed = False
    with client.responses.stream(**GREEDY, input=QUESTION) as stream:
        for event in stream:
            if not killed and event.type == "response.output_text.delta":
                killed = True
                os.kill(gateway.worker_pid(), signal.SIGKILL)
        final = stream.get_final_response()
    assert killed
    assert final.output_text == undisturbed.output_text
