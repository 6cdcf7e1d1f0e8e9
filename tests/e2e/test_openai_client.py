"""The official OpenAI client, unmodified, against a running gateway."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import openai
import pytest

from protocol.extras import command_to_add
from tests.support.gateway import Gateway, eventually
from tests.support.pictures import RED, data_url, png
from tests.support.usage import of_text

QUESTION = [{"role": "user", "content": "What is Bulkhead?"}]
STORY = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def whole(client: openai.OpenAI) -> str:
    answer = client.chat.completions.create(model="demo", messages=QUESTION)
    assert answer.choices[0].finish_reason == "stop"
    return answer.choices[0].message.content


def test_streams_the_same_text(client: openai.OpenAI, whole: str) -> None:
    chunks = list(client.chat.completions.create(model="demo", messages=QUESTION, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert all(chunk.usage is None for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1


def test_usage_is_the_same_streamed_and_not(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(model="demo", messages=QUESTION).usage
    *chunks, last = client.chat.completions.create(
        model="demo", messages=QUESTION, stream=True, stream_options={"include_usage": True}
    )
    assert last.choices == []
    assert of_text(last.usage.model_dump()) == of_text(plain.model_dump())
    assert plain.total_tokens == plain.prompt_tokens + plain.completion_tokens
    assert all(chunk.usage is None for chunk in chunks)


def test_several_answers_to_one_prompt(client: openai.OpenAI) -> None:
    asked = {"model": "demo", "messages": STORY, "seed": 7, "max_tokens": 20, "temperature": 2}
    alone = client.chat.completions.create(**asked)
    several = client.chat.completions.create(**asked, n=3)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in several.choices]
    assert texts[0] == alone.choices[0].message.content
    assert len(set(texts)) == 3
    assert several.usage.prompt_tokens == alone.usage.prompt_tokens
    assert several.usage.completion_tokens <= 60
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**asked, n=3, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_several_prompts(client: openai.OpenAI) -> None:
    asked = {"model": "demo", "max_tokens": 5, "temperature": 0}
    prompts = ["Bulkhead is", "Once upon"]
    alone = [client.completions.create(**asked, prompt=prompt) for prompt in prompts]
    both = client.completions.create(**asked, prompt=prompts, n=2)
    texts = [item.choices[0].text for item in alone]
    assert [choice.text for choice in both.choices] == [texts[0], texts[0], texts[1], texts[1]]
    assert both.usage.prompt_tokens == sum(item.usage.prompt_tokens for item in alone)


def test_logprobs_of_a_chat(client: openai.OpenAI, whole: str) -> None:
    asked = {"model": "demo", "messages": QUESTION, "logprobs": True, "top_logprobs": 2}
    tokens = client.chat.completions.create(**asked).choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == whole
    for item in tokens:
        assert len(item.top_logprobs) == 2
        assert item.top_logprobs[0].logprob >= item.top_logprobs[1].logprob
        assert item.logprob <= 0
    chunks = client.chat.completions.create(**asked, stream=True)
    streamed = [
        token.token
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs
        for token in choice.logprobs.content
    ]
    assert streamed == [token.token for token in tokens]


def test_echo_with_logprobs_scores_a_prompt(client: openai.OpenAI) -> None:
    prompt = "Bulkhead is a server"
    asked = {"model": "demo", "max_tokens": 3, "temperature": 0}
    plain = client.completions.create(**asked, prompt=prompt).choices[0].text
    assert client.completions.create(**asked, prompt=prompt, echo=True).choices[0].text == (
        prompt + plain
    )
    found = client.completions.create(**asked, prompt=prompt, echo=True, logprobs=1).choices[0]
    logprobs = found.logprobs
    assert found.text == prompt + plain
    assert logprobs.token_logprobs[0] is None
    assert all(token_logprob <= 0 for token_logprob in logprobs.token_logprobs[1:])
    assert "".join(logprobs.tokens).startswith(prompt)
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert found.text[offset:].startswith(token)


def test_the_best_of_several(client: openai.OpenAI) -> None:
    asked = {"model": "demo", "prompt": "Once", "max_tokens": 6, "temperature": 2, "seed": 1}
    several = client.completions.create(**asked, n=4, logprobs=0)
    means = [sum(e.logprobs.token_logprobs) / len(e.logprobs.tokens) for e in several.choices]
    best = several.choices[means.index(max(means))].text
    found = client.completions.create(**asked, best_of=4)
    assert [choice.text for choice in found.choices] == [best]
    assert found.choices[0].logprobs is None


def test_a_model_that_can_not_fill_in_says_so(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="fill in the middle") as caught:
        client.completions.create(model="demo", prompt="a", suffix="b")
    assert caught.value.param == "suffix"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_length_limits(client: openai.OpenAI, whole: str, name: str) -> None:
    answer = client.chat.completions.create(model="demo", messages=QUESTION, **{name: 7})
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 7
    assert whole.startswith(answer.choices[0].message.content)


def test_ignoring_the_end_of_sequence(client: openai.OpenAI, whole: str) -> None:
    answer = client.chat.completions.create(
        model="demo", messages=QUESTION, max_tokens=190, extra_body={"ignore_eos": True}
    )
    assert answer.usage.completion_tokens == 190
    assert answer.choices[0].message.content.startswith(whole)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["worker process", ["never said", "own, behind"]])
def test_stop_sequences(
    client: openai.OpenAI, whole: str, stop: str | list[str], *, stream: bool
) -> None:
    first = min(
        whole.index(name) for name in ([stop] if isinstance(stop, str) else stop) if name in whole
    )
    answer = client.chat.completions.create(
        model="demo", messages=QUESTION, stop=stop, stream=stream
    )
    if stream:
        chunks = list(answer)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
    assert (text, reason) == (whole[:first], "stop")


def test_seeded_sampling_repeats(client: openai.OpenAI) -> None:
    def sample(seed: int) -> str:
        return (
            client.completions.create(
                model="demo", prompt="Once", temperature=2.0, seed=seed, max_tokens=40
            )
            .choices[0]
            .text
        )

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def test_text_parts(client: openai.OpenAI, whole: str) -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "Bulkhead?"}]
    answer = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": parts}]
    )
    assert answer.choices[0].message.content == whole


@pytest.mark.parametrize("stream", [False, True])
def test_completions(client: openai.OpenAI, *, stream: bool) -> None:
    answer = client.completions.create(
        model="demo", prompt="Bulkhead is", max_tokens=30, stream=stream
    )
    if stream:
        chunks = list(answer)
        assert "".join(chunk.choices[0].text for chunk in chunks)
        assert chunks[-1].choices[0].finish_reason == "length"
    else:
        assert answer.object == "text_completion"
        assert answer.usage.completion_tokens == 30


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "expected"), [(None, " a server"), ([" a"], ""), (["server"], " a ")]
)
def test_a_completion_begins_where_the_prompt_ends(
    client: openai.OpenAI, stop: list[str] | None, expected: str, *, stream: bool
) -> None:
    answer = client.completions.create(
        model="demo", prompt="Bulkhead is", max_tokens=8, temperature=0, stop=stop, stream=stream
    )
    choices = [item.choices[0] for item in (answer if stream else [answer])]
    text = "".join(choice.text for choice in choices)
    assert choices[-1].finish_reason == ("length" if stop is None else "stop")
    assert text.startswith(expected) if stop is None else text == expected


def test_completions_of_token_ids(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="demo", prompt=[50, 51, 52], max_tokens=3)
    assert answer.usage.prompt_tokens == 3


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").state == "ready"
    with pytest.raises(openai.NotFoundError, match="there are: demo"):
        client.models.retrieve("nobody/knows")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 129}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "?"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].image_url",
        ),
    ],
)
def test_bad_requests_name_the_field(
    client: openai.OpenAI, fields: dict[str, object], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "demo", "messages": QUESTION, **fields})
    assert caught.value.param is not None
    assert caught.value.param.replace("[...]", "[0]") == param
    assert caught.value.code == "invalid_request_error"


@pytest.mark.parametrize(
    ("role", "url", "reason"),
    [
        ("user", data_url(png(RED)), command_to_add("vision")),
        ("system", data_url(png(RED)), "only a user's message"),
    ],
)
def test_pictures_for_a_model_without_eyes(
    client: openai.OpenAI, role: str, url: str, reason: str
) -> None:
    parts = [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": url}}]
    with pytest.raises(openai.BadRequestError, match=re.escape(reason)) as caught:
        client.chat.completions.create(model="demo", messages=[{"role": role, "content": parts}])
    assert caught.value.param == "messages[0].content[1].image_url"


@pytest.mark.parametrize("stream", [False, True])
def test_pictures_of_earlier_messages_are_told(client: openai.OpenAI, stream: bool) -> None:
    """The model had eyes before, or the client kept what was refused."""
    picture = {"type": "image_url", "image_url": {"url": data_url(png(RED))}}
    said = {"role": "user", "content": [{"type": "text", "text": "?"}, picture]}
    for between in ([], [{"role": "assistant", "content": "Red."}]):
        raw = client.chat.completions.with_raw_response.create(
            model="demo", messages=[said, *between, *QUESTION], max_tokens=2, stream=stream
        )
        assert raw.headers["x-bulkhead-left-out"] == "image"
        raw.parse()
    plain = client.chat.completions.with_raw_response.create(
        model="demo", messages=QUESTION, max_tokens=2
    )
    assert "x-bulkhead-left-out" not in plain.headers


def test_unknown_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=QUESTION)
    assert caught.value.code == "model_not_found"
    assert caught.value.response.headers["x-request-id"].startswith("req_")


CONTEXT = "This model's maximum context length is 4096 tokens. However, "
LONG = "a server " * 5000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_an_answer_is_cut_to_what_the_context_leaves(client: openai.OpenAI, name: str) -> None:
    """As opencode asks for 32,000 tokens of any model."""
    messages = [{"role": "user", "content": "a server " * 2030}]
    answer = client.chat.completions.create(
        model="demo", messages=messages, extra_body={"ignore_eos": True}, **{name: 32_000}
    )
    assert answer.choices[0].finish_reason == "length"
    assert 0 < answer.usage.completion_tokens < 100
    assert answer.usage.total_tokens == 4096


@pytest.mark.parametrize("limit", [{}, {"max_tokens": 5}], ids=["none", "five tokens"])
@pytest.mark.parametrize("content", [LONG, LONG * 100], ids=["counted", "not even counted"])
def test_a_context_that_can_never_hold_the_prompt(
    client: openai.OpenAI, limit: dict[str, int], content: str
) -> None:
    """The limit of the answer isn't to blame, and isn't spoken of."""
    with pytest.raises(openai.BadRequestError) as chat:
        client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": content}], **limit
        )
    with pytest.raises(openai.BadRequestError) as completion:
        client.completions.create(model="demo", prompt=content, **limit)
    for caught, param in ((chat, "messages"), (completion, "prompt")):
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", param)
        assert f"{CONTEXT}the prompt is too long" in caught.value.message
        assert "max_tokens" not in caught.value.message
        assert "answer of" not in caught.value.message


@pytest.mark.slow
def test_a_default_that_does_not_fit_is_cut(client: openai.OpenAI) -> None:
    """A completion has 16 tokens where nothing else is said."""
    answer = client.completions.create(
        model="demo", prompt=[50] * 4090, extra_body={"ignore_eos": True}
    )
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 6)


def test_other_failures_of_a_prompt_name_it(client: openai.OpenAI) -> None:
    for prompt in ("", [1 << 20]):
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="demo", prompt=prompt)
        assert (caught.value.code, caught.value.param) == ("invalid_request_error", "prompt")


def test_closing_a_stream_cancels_it(client: openai.OpenAI, gateway: Gateway) -> None:
    stream = client.chat.completions.create(
        model="demo",
        messages=STORY,
        stream=True,
        max_tokens=3500,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    assert gateway.model()["active_requests"] == 1
    stream.close()
    eventually(lambda: gateway.model()["active_requests"] == 0)
    # The worker has nothing to do any more, so the age of its last step grows.
    eventually(lambda: gateway.model()["worker"]["last_step_age_s"] > 1.0)
    log = (gateway.state_dir / "logs" / "gateway.log").read_text()
    assert 3500 not in [json.loads(line).get("completion_tokens") for line in log.splitlines()]


async def test_many_clients_at_once(gateway: Gateway, whole: str) -> None:
    import asyncio

    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=120
    ) as client:

        async def ask() -> str:
            chunks = await client.chat.completions.create(
                model="demo", messages=QUESTION, stream=True, max_tokens=40
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

        began = time.monotonic()
        texts = await asyncio.gather(*(ask() for _ in range(64)))
    assert len(set(texts)) == 1, time.monotonic() - began
    assert texts[0]
    assert whole.startswith(texts[0])


def test_scores_of_a_prompt_alone(client: openai.OpenAI) -> None:
    asked = {"model": "demo", "prompt": "Bulkhead is a model server", "temperature": 0}
    more = client.completions.create(**asked, max_tokens=1, echo=True, logprobs=1)
    alone = client.completions.create(**asked, max_tokens=0, echo=True, logprobs=1)
    (choice,) = alone.choices
    assert (choice.text, choice.finish_reason) == (asked["prompt"], "length")
    expected = more.choices[0].logprobs
    assert choice.logprobs.tokens == expected.tokens[:-1]
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(expected.token_logprobs[1:-1])
    assert alone.usage.completion_tokens == 0
    assert alone.usage.prompt_tokens == more.usage.prompt_tokens
    chunks = list(client.completions.create(**asked, max_tokens=0, echo=True, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == asked["prompt"]
    assert client.completions.create(**asked, max_tokens=0).choices[0].text == ""


def test_arguments_of_the_template_are_named(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="doesn't know 'nothing'") as caught:
        client.chat.completions.create(
            model="demo", messages=QUESTION, extra_body={"chat_template_kwargs": {"nothing": 1}}
        )
    assert caught.value.param == "chat_template_kwargs"


def test_capabilities_list_accepted_inputs(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"send one of .*'user'"):
        client.chat.completions.create(model="demo", messages=[{"role": "king", "content": "I"}])
