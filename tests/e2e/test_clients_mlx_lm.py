"""What mlx_lm.server's clients send, with its defaults written out, gets the same answers here."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.support.gateway import Gateway
from tests.support.streams import Stream
from tests.support.usage import of_text

# What its handler takes a parameter for that isn't given, which its clients may send.
DEFAULTS: dict[str, Any] = {
    "stream": False,
    "stream_options": None,
    "draft_model": "default_model",
    "num_draft_tokens": 3,
    "adapters": None,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 0.0,
    "repetition_context_size": 20,
    "presence_penalty": 0.0,
    "presence_context_size": 20,
    "frequency_penalty": 0.0,
    "frequency_context_size": 20,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "logit_bias": None,
    "logprobs": False,
    "top_logprobs": -1,
    "seed": None,
    "chat_template_kwargs": None,
    "role_mapping": None,
    "tools": None,
    "stop": None,
}
CONVERSATION = [
    {"role": "system", "content": "Answer in one sentence."},
    {"role": "user", "content": "What is Bulkhead?"},
]
IN_PARTS = [
    {"role": entry["role"], "content": [{"type": "text", "text": entry["content"]}]}
    for entry in CONVERSATION
]


@pytest.fixture(scope="module")
def gateway():
    """It is asked for under the name that stands for mlx_lm.server's only model."""
    running = Gateway(
        models=(), config='[models.demo]\npath = "demo"\naliases = ["default_model"]\n'
    )
    yield running
    assert running.stop() == 0, running.log


def _post(gateway: Gateway, path: str, **fields: Any) -> httpx.Response:
    body = {"model": "default_model", "max_tokens": 10, **fields}
    return gateway.client.post(f"/v1/{path}", json=body)


def test_its_defaults_change_nothing(gateway: Gateway) -> None:
    for path, prompt in (
        ("completions", {"prompt": "Once upon a time"}),
        ("chat/completions", {"messages": CONVERSATION}),
    ):
        plain = _post(gateway, path, temperature=0, **prompt)
        written_out = _post(gateway, path, temperature=0, **prompt, **DEFAULTS)
        assert written_out.status_code == 200, written_out.text
        assert written_out.json()["choices"] == plain.json()["choices"]


def test_a_repetition_penalty_is_applied(gateway: Gateway) -> None:
    prompt = {"prompt": "ship ship ship ship ship", "temperature": 0, "max_tokens": 40}
    plain, penalized, far = (
        _post(gateway, "completions", **prompt, **fields).json()["choices"][0]["text"]
        for fields in (
            {},
            {"repetition_penalty": 1.5},
            {"repetition_penalty": 1.5, "repetition_context_size": 1},
        )
    )
    assert len({plain, penalized, far}) == 3


def test_a_seeded_completion_repeats(gateway: Gateway) -> None:
    sampled = {"temperature": 0.5, "top_p": 0.9, "seed": 999, "stop": "stop sequence"}
    first, second = (
        _post(gateway, "completions", prompt="Once upon a time", **sampled).json() for _ in range(2)
    )
    assert first["id"] != second["id"]
    assert first["choices"] == second["choices"]
    assert first["usage"]["completion_tokens"] == 10


def test_content_in_parts_is_content(gateway: Gateway) -> None:
    plain, parts = (
        _post(gateway, "chat/completions", messages=values, temperature=0).json()
        for values in (CONVERSATION, IN_PARTS)
    )
    assert plain["choices"] == parts["choices"]
    assert of_text(plain["usage"]) == of_text(parts["usage"])


def test_every_event_of_a_stream_has_one_choice(gateway: Gateway) -> None:
    answer = _post(gateway, "chat/completions", messages=CONVERSATION, temperature=0, stream=True)
    lines = answer.text.splitlines()
    stream = Stream()
    for line in lines:
        stream.add_line(line)
        if line.startswith("data: {"):
            (choice,) = json.loads(line.removeprefix("data: "))["choices"]
            assert "delta" in choice
    whole = _post(gateway, "chat/completions", messages=CONVERSATION, temperature=0).json()
    assert stream.text == whole["choices"][0]["message"]["content"]
    assert stream.done


def test_questions_that_begin_alike(gateway: Gateway) -> None:
    for text in ("Tell me a story", "Tell me a story about a ship."):
        messages = [CONVERSATION[0], {"role": "user", "content": text}]
        answer = _post(gateway, "chat/completions", messages=messages).json()
        assert answer["choices"][0]["message"]["content"]


def test_the_list_of_models(gateway: Gateway) -> None:
    body = gateway.client.get("/v1/models").raise_for_status().json()
    assert body["object"] == "list"
    assert [(item["id"], item["object"]) for item in body["data"]] == [("demo", "model")]
    assert all(isinstance(item["created"], int) for item in body["data"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"adapters": "folder"}, "adapters"),
        ({"draft_model": "another"}, "draft_model"),
        ({"role_mapping": {"user": "USER: "}}, "role_mapping"),
    ],
)
def test_differences_from_mlx_lm_server(
    gateway: Gateway, fields: dict[str, Any], param: str
) -> None:
    answer = _post(gateway, "chat/completions", messages=CONVERSATION, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert set(answer.json()["error"]) >= {"message", "type", "code"}


def test_an_answer_to_a_call_without_words(gateway: Gateway) -> None:
    """The null content of its call isn't what is complained of."""
    messages = [
        {"role": "user", "content": "What is 2 + 3?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "content": "5", "tool_call_id": "1"},
    ]
    answer = _post(gateway, "chat/completions", messages=messages).raise_for_status().json()
    assert answer["choices"][0]["message"]["content"]
