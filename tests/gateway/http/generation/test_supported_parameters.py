"""The table of parameters holds all that the bodies decode, and all that the clients know."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec
import ollama
import openai.types.chat
import pytest
from mlx_lm.server import APIHandler
from msgspec import Raw
from ollama._types import GenerateRequest
from openai.types import completion_create_params as completions_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.chat.chat_completion_stream_options_param import ChatCompletionStreamOptionsParam
from openai.types.embedding_create_params import EmbeddingCreateParams
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

from gateway.http.generation.generation_body import StreamOptions
from gateway.http.generation.supported_parameters import (
    PARAMETERS,
    PLACES,
    Place,
    check_supported,
    parameters_at,
    printed,
)
from gateway.http.ollama.bodies import GenerateBody, OllamaOptions
from gateway.http.openai.chat import ChatBody, ChatMessageBody, ContentPart
from gateway.http.openai.completions import CompletionBody
from gateway.http.openai.responses_bodies import ResponseBody
from gateway.http.openai.vectors import EmbeddingsBody, RerankBody
from gateway.system.refusal import Refusal

BODIES: dict[Place, type[msgspec.Struct]] = {
    "chat": ChatBody,
    "completions": CompletionBody,
    "responses": ResponseBody,
    "stream_options": StreamOptions,
    "message": ChatMessageBody,
    "part": ContentPart,
    "embeddings": EmbeddingsBody,
    "rerank": RerankBody,
    "generate": GenerateBody,
    "options": OllamaOptions,
}
DOCS = Path(__file__).parents[4] / "docs"


def _known(place: Place) -> set[str]:
    return {parameter.name for parameter in PARAMETERS if place in parameter.places}


def _openai_messages() -> set[str]:
    """Of every role but `function`, which is refused as a role."""
    roles = ("Assistant", "Developer", "System", "Tool", "User")
    kinds = [getattr(openai.types.chat, f"ChatCompletion{role}MessageParam") for role in roles]
    return {name for kind in kinds for name in kind.__annotations__}


def _openai_parts() -> set[str]:
    kinds = [
        getattr(openai.types.chat, name)
        for name in dir(openai.types.chat)
        if name.startswith("ChatCompletionContentPart") and name.endswith("Param")
    ]
    return {name for kind in kinds for name in getattr(kind, "__annotations__", ())}


OPENAI: dict[Place, set[str]] = {
    "chat": set(chat_params.CompletionCreateParamsStreaming.__annotations__),
    "completions": set(completions_params.CompletionCreateParamsStreaming.__annotations__),
    "responses": set(ResponseCreateParamsStreaming.__annotations__),
    "stream_options": set(ChatCompletionStreamOptionsParam.__annotations__),
    "message": _openai_messages(),
    "part": _openai_parts(),
    "embeddings": set(EmbeddingCreateParams.__annotations__),
}


def _mlx_lm() -> set[str]:
    return set(re.findall(r'\bbody(?:\.get\(|\[)\s*"(\w+)"', inspect.getsource(APIHandler)))


@pytest.mark.parametrize("place", PLACES)
def test_table_has_each_parameter_once(place: Place) -> None:
    names = Counter(parameter.name for parameter in PARAMETERS if place in parameter.places)
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("place", PLACES)
def test_body_has_fields_of_table(place: Place) -> None:
    fields = {
        field.name: get_args(field.type)[0] if get_origin(field.type) is Annotated else field.type
        for field in msgspec.structs.fields(BODIES[place])
    }
    done = {parameter.name for parameter in parameters_at(place, "done")}
    refused = {parameter.name for parameter in parameters_at(place, "refused")}
    assert fields.keys() == done | refused
    assert {fields[name] for name in refused} <= {Raw}


@pytest.mark.parametrize("place", OPENAI)
def test_openai_knows_no_others(place: Place) -> None:
    assert len(OPENAI[place]) >= 2
    assert OPENAI[place] - _known(place) == set()


def test_mlx_lm_server_knows_no_others() -> None:
    assert {"messages", "prompt", "repetition_penalty", "role_mapping"} <= _mlx_lm()
    for place in ("chat", "completions"):
        assert _mlx_lm() - _known(place) == set()


def test_ollama_knows_no_others() -> None:
    assert set(ollama.Options.model_fields) - _known("options") == set()
    assert set(GenerateRequest.model_fields) - _known("generate") == set()


def test_the_harmless_say_why() -> None:
    assert all(parameter.note for place in PLACES for parameter in parameters_at(place, "harmless"))


@pytest.mark.parametrize(
    ("name", "text", "neutral"),
    [
        ("use_beam_search", "false", True),
        ("use_beam_search", "0", False),
        ("parallel_tool_calls", "1", False),
        ("thinking_token_budget", "-1.0", True),
        ("top_logprobs", "-1", True),
        ("draft_model", '"default_model"', True),
        ("draft_model", '"\\ud800"', False),
        ("kv_transfer_params", "{}", True),
        ("kv_transfer_params", f"[{'[]' * 200}]", False),
        ("prompt_logprobs", "null", True),
        ("prompt_logprobs", "{}", False),
    ],
)
def test_neutral_values(name: str, text: str, *, neutral: bool) -> None:
    body: Any = msgspec.json.decode(b'{"model": "m", "prompt": "x"}', type=CompletionBody)
    setattr(body, name, Raw(text.encode()))
    if neutral:
        check_supported(body, "completions")
        return
    with pytest.raises(Refusal) as refused:
        check_supported(body, "completions")
    assert refused.value.param == name


def test_the_page_has_the_table() -> None:
    page = (DOCS / "parameters.md").read_text("utf-8")
    assert "\n".join(printed()) in page
