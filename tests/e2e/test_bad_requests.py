"""Requests that can't be served: a clear answer, and nothing that stays behind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.gateway import Gateway, eventually

COMPLETION = {"model": "demo", "prompt": "Hello", "max_tokens": 1}
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}

BAD_COMPLETIONS: dict[str, tuple[dict[str, Any], str]] = {
    "a top_k that 64 bits don't hold": ({"top_k": 1 << 64}, "top_k"),
    "a token id that 32 bits don't hold": ({"prompt": [1 << 32]}, "prompt"),
    "a negative token id": ({"prompt": [-1]}, "prompt"),
    "a long stop sequence": ({"stop": "x" * 1001}, "stop"),
    "a penalty": ({"repetition_penalty": -1.5}, "repetition_penalty"),
    "an unsupported parameter of megabytes": (
        {"logits_processors": [[]] * 1_000_000},
        "logits_processors",
    ),
    "biases of megabytes": ({"logit_bias": [[]] * 1_000_000}, "logit_bias"),
    "too large a bias": ({"logit_bias": {"5": 100.5}}, "logit_bias"),
    "a bias for a word": ({"logit_bias": {"five": 1}}, "logit_bias"),
    "a bias for no token": ({"logit_bias": {"-1": 1}}, "logit_bias"),
    "too many biases": ({"logit_bias": {str(index): 1 for index in range(1025)}}, "logit_bias"),
    "a bias for a token that isn't there": ({"logit_bias": {"99999": 1}}, "logit_bias"),
    "too large a penalty": ({"frequency_penalty": 2.1}, "frequency_penalty"),
    "too small a penalty": ({"presence_penalty": -2.1}, "presence_penalty"),
    "too large a threshold": ({"xtc_threshold": 0.6}, "xtc_threshold"),
    "more tokens than there may be": ({"min_tokens": 2}, "min_tokens"),
    "no such stop token": ({"stop_token_ids": [99999]}, "stop_token_ids"),
    "an empty word": ({"bad_words": [""]}, "bad_words[0]"),
    "a format": (
        {"response_format": {"type": "json_schema"}},
        "response_format.json_schema.schema",
    ),
    "two formats": ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
    "worst of several": ({"n": 3, "best_of": 2}, "best_of"),
    "no prompt": ({"prompt": ...}, "prompt"),
    "no model": ({"model": ...}, "model"),
    "none at all": ({"n": 0}, "n"),
}


@pytest.mark.parametrize("name", BAD_COMPLETIONS)
def test_completions(name: str, gateway: Gateway) -> None:
    changes, param = BAD_COMPLETIONS[name]
    body = {key: value for key, value in {**COMPLETION, **changes}.items() if value is not ...}
    for _ in range(3):
        answer = gateway.client.post("/v1/completions", json=body)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("invalid_request_error", param)
        assert error["message"]
    model = gateway.model()
    assert (model["active_requests"], model["queue_depth"]) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": [{"role": "user"}, {}]}, "messages[1].role"),
        ({"messages": ...}, "messages"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"prediction": "Hello"}, "prediction"),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        ({"prediction": {"type": "file", "content": "Hello"}}, "prediction.type"),
        ({"prediction": {"type": "content", "content": 5}}, "prediction.content"),
        (
            {"prediction": {"type": "content", "content": [{"type": "image_url", "text": ""}]}},
            "prediction.content[0].type",
        ),
        (
            {"prediction": {"type": "content", "content": [{"type": "text"}]}},
            "prediction.content[0].text",
        ),
    ],
)
def test_chats(changes: dict[str, Any], param: str, gateway: Gateway) -> None:
    body = {key: value for key, value in {**CHAT, **changes}.items() if value is not ...}
    answer = gateway.client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    "body",
    [
        {**COMPLETION, "prompt": "x" * (4 << 20)},
        {**COMPLETION, "prompt": [1] * 3_000_000},
        {**COMPLETION, "prompt": [1] * 100_000},
    ],
    ids=["text", "three million tokens", "a hundred thousand tokens"],
)
def test_far_too_long(body: dict[str, Any], gateway: Gateway) -> None:
    gateway.load()
    before = eventually(lambda: gateway.model()["worker"]["footprint_bytes"])
    # Whoever shares this gateway may have needed more earlier.
    peak = gateway.model()["worker"]["peak_footprint_bytes"]
    answer = gateway.client.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    after = gateway.model()["worker"]["peak_footprint_bytes"]
    assert after <= max(peak, before + 100e6), "it was refused before it was tokenized"


def test_parameters_without_effect_are_accepted(gateway: Gateway) -> None:
    neutral = {"logprobs": False, "logit_bias": {}, "presence_penalty": 0, "tools": None}
    answer = gateway.client.post(
        "/v1/completions", json={**COMPLETION, **neutral, "response_format": {"type": "text"}}
    )
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", ["chat/completions", "completions", "messages", "responses"])
def test_numbers_that_no_machine_word_holds(path: str, gateway: Gateway) -> None:
    document = gateway.client.get("/openapi.json").json()
    content = document["paths"][f"/v1/{path}"]["post"]["requestBody"]["content"]
    name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
    fields = document["components"]["schemas"][name]["properties"]
    numbers = [item for item, schema in fields.items() if '"integer"' in json.dumps(schema)]
    assert len(numbers) >= 2
    for field in numbers:
        for number in (1 << 64, -(1 << 63) - 1):
            body = {**COMPLETION, **CHAT, "input": "Hello", "max_output_tokens": 1, field: number}
            answer = gateway.client.post(f"/v1/{path}", json=body)
            assert answer.status_code in (200, 400), (field, number, answer.text)


def test_far_too_many_messages(gateway: Gateway) -> None:
    messages = [{"role": "user", "content": ""}] * 50_000
    answer = gateway.client.post("/v1/chat/completions", json={**CHAT, "messages": messages})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_almost_no_temperature_is_greedy(gateway: Gateway) -> None:
    greedy = gateway.say("Hello", temperature=0.0)
    assert gateway.say("Hello", temperature=1e-39, seed=1) == greedy


@pytest.mark.parametrize("digits", ["x", "-1", "9" * 5000, "\u0661"])
def test_counts(digits: str, gateway: Gateway) -> None:
    for path, name in (("models/demo/logs", "lines"), ("events", "recent")):
        answer = gateway.client.get(f"/admin/v1/{path}?follow=0&{name}={digits}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


def test_an_origin_that_is_none(gateway: Gateway) -> None:
    answer = gateway.client.get("/admin/v1/status", headers={"Origin": "http://["})
    assert answer.status_code == 403


def test_orders_with_misspelt_options(gateway: Gateway) -> None:
    answer = gateway.client.post("/admin/v1/models/demo/load", json={"wiat": False})
    assert answer.status_code == 400
    assert "wiat" in answer.json()["error"]["message"]


def test_a_wrong_method_says_which_are_right(gateway: Gateway) -> None:
    answer = gateway.client.get("/v1/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "OPTIONS, POST")
