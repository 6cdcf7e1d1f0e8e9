"""Every parameter of the table is what the table says: done, refused by name, or harmless."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from gateway.config.model_folders import DEMO_FOLDER
from gateway.http.generation.supported_parameters import (
    PARAMETERS,
    PLACES,
    Parameter,
    Place,
    parameters_at,
)
from tests.support.gateway import Gateway

BODIES: dict[Place, dict[str, Any]] = {
    "embeddings": {"model": "demo", "input": ["Bulkhead", "a server"]},
    "rerank": {"model": "demo", "query": "Bulkhead", "documents": ["a server", "the sea"]},
    "completions": {"model": "demo", "prompt": "Bulkhead is", "max_tokens": 4, "temperature": 0},
    "chat": {
        "model": "demo",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "What is Bulkhead?"}]}],
        "max_tokens": 4,
        "temperature": 0,
        "stream_options": {},
    },
    "responses": {
        "model": "demo",
        "input": "What is Bulkhead?",
        "max_output_tokens": 16,
        "temperature": 0,
    },
    "generate": {
        "model": "demo",
        "prompt": "What is Bulkhead?",
        "stream": False,
        "options": {"num_predict": 4, "temperature": 0},
    },
}
# Beside the neutral ones: what a client would send who means it, and what no type of theirs allows.
ASKING: dict[str, list[Any]] = {
    "n": [2, 0, True],
    "logprobs": [True, 0, 5],
    "top_logprobs": [3],
    "echo": [True, 0],
    "best_of": [3],
    "response_format": [{"type": "json_object"}],
    "tool_choice": ["required", {"type": "function", "function": {"name": "f"}}],
    "parallel_tool_calls": [False],
    "reasoning_effort": ["low", "none"],
    "modalities": [["text", "audio"]],
    "web_search_options": [{}],
    "chat_template_kwargs": [{"enable_thinking": False}],
    "enable_thinking": [True, False],
    "continue_final_message": [True],
    "add_generation_prompt": [False],
    "include_reasoning": [False],
    "skip_special_tokens": [True],
    "adapters": ["a/folder"],
    "draft_model": ["another"],
    "guided_json": [{"type": "object"}, {}],
}
SOMETHING: list[Any] = ["something", 7, {"some": "thing"}, True, False, 0]

REFUSED = [(place, parameter) for place in PLACES for parameter in parameters_at(place, "refused")]


def _id(value: object) -> str:
    return value.name if isinstance(value, Parameter) else str(value)


def _body(place: Place, **values: Any) -> tuple[str, dict[str, Any]]:
    """The path, and a body with those parameters."""
    if place in ("completions", "embeddings", "rerank", "responses"):
        return f"/v1/{place}", {**BODIES[place], **values}
    if place == "generate":
        return "/api/generate", {**BODIES[place], **values}
    if place == "options":
        generate = BODIES["generate"]
        return "/api/generate", {**generate, "options": {**generate["options"], **values}}
    body = {**BODIES["chat"]}
    message = {**body["messages"][0]}
    part = {**message["content"][0]}
    match place:
        case "chat":
            body |= values
        case "stream_options":
            body[place] = values
        case "message":
            message |= values
        case "part":
            part |= values
    if place in ("message", "part"):
        body["messages"] = [{**message, "content": [part]}]
    return "/v1/chat/completions", body


def _called(place: Place, name: str) -> str:
    """As an error names it."""
    prefix = {
        "options": "options.",
        "stream_options": "stream_options.",
        "message": "messages[0].",
        "part": "messages[0].content[0].",
    }
    return prefix.get(place, "") + name


def _text(gateway: Gateway, path: str, body: dict[str, Any]) -> str:
    answer = gateway.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    if "response" in said:
        return str(said["response"])
    if "output" in said:
        return json.dumps([item["content"] for item in said["output"]])
    if "choices" not in said:
        # Vectors, or scores.
        return json.dumps(said.get("data") or said["results"])
    choice = said["choices"][0]
    text: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return text


@pytest.fixture(scope="module")
def plain(gateway: Gateway) -> dict[str, str]:
    """The greedy text of each path, or its numbers, with nothing added."""
    places = [place for place in BODIES if place != "chat"]
    bodies = [_body(place) for place in ("chat", *places)]
    return {path: _text(gateway, path, body) for path, body in bodies}


def _same(value: Any, neutral: Any) -> bool:
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


@pytest.mark.parametrize(("place", "parameter"), REFUSED, ids=_id)
def test_refused_by_name(place: Place, parameter: Parameter, gateway: Gateway) -> None:
    values = [
        value
        for value in [*ASKING.get(parameter.name, []), *SOMETHING]
        if not any(_same(value, item) for item in parameter.neutral)
    ]
    assert values
    for value in values:
        path, body = _body(place, **{parameter.name: value})
        name = _called(place, parameter.name)
        answer = gateway.client.post(path, json=body)
        assert answer.status_code == 400, (value, answer.text)
        error = answer.json()["error"]
        if path == "/api/generate":
            # Ollama's errors are a text.
            assert name in error
            continue
        assert (error["code"], error["param"]) == ("invalid_request_error", name)
        assert name in error["message"]


@pytest.mark.parametrize("place", PLACES)
def test_neutral_values_change_nothing(
    place: Place, gateway: Gateway, plain: dict[str, str]
) -> None:
    """All at once: one that is refused is named, and one that changes something is seen."""
    rounds = [(None, *parameter.neutral) for parameter in parameters_at(place, "refused")]
    for turn in range(max(map(len, rounds), default=0)):
        values = {
            parameter.name: of[turn % len(of)]
            for parameter, of in zip(parameters_at(place, "refused"), rounds, strict=True)
        }
        path, body = _body(place, **values)
        assert _text(gateway, path, body) == plain[path]


@pytest.mark.parametrize("value", ["something", {"some": "thing"}, True], ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_the_harmless_change_nothing(
    place: Place, value: Any, gateway: Gateway, plain: dict[str, str]
) -> None:
    path, body = _body(
        place, **{parameter.name: value for parameter in parameters_at(place, "harmless")}
    )
    assert _text(gateway, path, body) == plain[path]


TOKENIZER = Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json"))


def _tokens(text: str) -> list[int]:
    token_ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return token_ids


@pytest.mark.slow
def test_sampling_parameters_change_the_choice(gateway: Gateway) -> None:
    """On both paths, down to the worker; its tests have the rest."""
    for place in ("chat", "completions"):
        path, body = _body(place, max_tokens=8)
        plain = _text(gateway, path, body)
        text = _text(gateway, path, {**body, "allowed_token_ids": _tokens("sea")})
        assert set(text) <= set("sea ")
        (eos,) = _tokens("<|im_end|>")
        eager = {**body, "logit_bias": {str(eos): 100}}
        assert _text(gateway, path, eager) == ""
        assert len(_text(gateway, path, {**eager, "min_tokens": 3})) >= 3
        words = plain.split()
        banned = _text(gateway, path, {**body, "bad_words": [words[-1]]})
        assert banned != plain
        # What it would say it knows by heart.
        few = {**body, "max_tokens": 60, "allowed_token_ids": [*range(20, 40)]}
        for name in ("frequency_penalty", "presence_penalty"):
            assert _text(gateway, path, {**few, name: 2}) != _text(gateway, path, few)
        sampled = {**few, "temperature": 1, "seed": 5}
        xtc = {"xtc_probability": 1, "xtc_threshold": 0.001}
        assert _text(gateway, path, {**sampled, **xtc}) != _text(gateway, path, sampled)


def test_parameters_that_end_an_answer(gateway: Gateway) -> None:
    path, body = _body("completions", max_tokens=12)
    plain = _text(gateway, path, body)
    stop = plain[5:9]
    until = plain[: plain.index(stop)]
    assert _text(gateway, path, {**body, "stop": stop}) == until
    included = {**body, "stop": stop, "include_stop_str_in_output": True}
    assert _text(gateway, path, included) == until + stop
    answer = gateway.client.post(path, json={**body, "logprobs": 0}).json()["choices"][0]
    last = answer["logprobs"]["tokens"][5]
    (token_id,) = [index for index in range(TOKENIZER.get_vocab_size()) if _spelled(index) == last]
    ended = gateway.client.post(path, json={**body, "stop_token_ids": [token_id]}).json()
    assert ended["choices"][0]["finish_reason"] == "stop"
    first = answer["logprobs"]["tokens"].index(last)
    assert ended["choices"][0]["text"] == "".join(answer["logprobs"]["tokens"][:first])


def _spelled(token_id: int) -> str:
    text: str = TOKENIZER.decode([token_id], skip_special_tokens=False)
    return text


def test_fields_that_nobody_knows_are_ignored(gateway: Gateway, plain: dict[str, str]) -> None:
    for place in PLACES:
        assert "nobody_knows" not in {parameter.name for parameter in PARAMETERS}
        path, body = _body(place, nobody_knows={"some": "thing"})
        assert _text(gateway, path, body) == plain[path]


@pytest.mark.parametrize("role", ["system", "developer", "user"])
@pytest.mark.parametrize("content", [None, ...], ids=["null", "missing"])
def test_a_message_says_something(role: str, content: object, gateway: Gateway) -> None:
    message: dict[str, Any] = {"role": role}
    if content is None:
        message["content"] = None
    body = {**BODIES["chat"], "messages": [*BODIES["chat"]["messages"], message]}
    answer = gateway.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_request_error", "messages[1].content")
    assert "messages[1].content is missing or null" in error["message"]


def test_no_parts_are_an_empty_text(gateway: Gateway) -> None:
    """As tools that found nothing answer."""
    texts = [
        _text(gateway, "/v1/chat/completions", {**BODIES["chat"], "messages": [message]})
        for message in ({"role": "user", "content": []}, {"role": "user", "content": ""})
    ]
    assert texts[0] == texts[1]


def test_an_assistant_may_have_said_nothing(gateway: Gateway) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": None, "refusal": None}
    first = BODIES["chat"]["messages"][0]
    body = {**BODIES["chat"], "messages": [first, message, first]}
    assert _text(gateway, "/v1/chat/completions", body)


def test_max_completion_tokens_on_both_paths(gateway: Gateway) -> None:
    for place in ("chat", "completions"):
        path, body = _body(place, max_completion_tokens=2)
        answer = gateway.client.post(path, json=body).raise_for_status().json()
        assert answer["usage"]["completion_tokens"] == 2
