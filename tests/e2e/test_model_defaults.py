"""A model's own system prompt and parameters, on every API, and what clients say instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.cli.terminal import bulkhead
from tests.support.gateway import Gateway

SYSTEM = "You are a pirate. Answer like one."
ASKED = "What is Bulkhead?"
CONFIG = f"""
[models.plain]
path = "demo"
[models.told]
path = "demo"
system = "{SYSTEM}"
defaults = {{ temperature = 0, top_k = 7 }}
"""
Ask = Callable[[Gateway, str, str | None, dict[str, Any]], tuple[int, str]]


def _post(gateway: Gateway, path: str, body: dict[str, Any]) -> Any:
    answer = gateway.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def _messages(system: str | None) -> list[dict[str, str]]:
    said = [] if system is None else [{"role": "system", "content": system}]
    return [*said, {"role": "user", "content": ASKED}]


def _chat(
    gateway: Gateway, model: str, system: str | None, more: dict[str, Any]
) -> tuple[int, str]:
    body = {"model": model, "messages": _messages(system), "max_tokens": 24, **more}
    found = _post(gateway, "/v1/chat/completions", body)
    return found["usage"]["prompt_tokens"], found["choices"][0]["message"]["content"]


def _responses(
    gateway: Gateway, model: str, system: str | None, more: dict[str, Any]
) -> tuple[int, str]:
    body = {"model": model, "input": ASKED, "max_output_tokens": 24, "store": False, **more}
    if system is not None:
        body["instructions"] = system
    found = _post(gateway, "/v1/responses", body)
    text = "".join(part["text"] for item in found["output"] for part in item.get("content", ()))
    return found["usage"]["input_tokens"], text


def _anthropic(
    gateway: Gateway, model: str, system: str | None, more: dict[str, Any]
) -> tuple[int, str]:
    body = {"model": model, "messages": _messages(None), "max_tokens": 24, **more}
    if system is not None:
        body["system"] = system
    found = _post(gateway, "/v1/messages", body)
    usage = found["usage"]
    return (
        usage["input_tokens"] + usage["cache_read_input_tokens"],
        "".join(item.get("text", "") for item in found["content"]),
    )


def _ollama_chat(
    gateway: Gateway, model: str, system: str | None, more: dict[str, Any]
) -> tuple[int, str]:
    options = {"num_predict": 24, **more}
    body = {"model": model, "messages": _messages(system), "stream": False, "options": options}
    found = _post(gateway, "/api/chat", body)
    return found["prompt_eval_count"], found["message"]["content"]


def _ollama_generate(
    gateway: Gateway, model: str, system: str | None, more: dict[str, Any]
) -> tuple[int, str]:
    options = {"num_predict": 24, **more}
    body = {"model": model, "prompt": ASKED, "stream": False, "options": options}
    if system is not None:
        body["system"] = system
    found = _post(gateway, "/api/generate", body)
    return found["prompt_eval_count"], found["response"]


APIS = [_chat, _responses, _anthropic, _ollama_chat, _ollama_generate]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    running = Gateway(models=(), config=CONFIG)
    yield running
    assert running.stop() == 0, running.log


@pytest.mark.parametrize("ask", APIS)
def test_request_without_choices_gets_the_models_defaults(gateway: Gateway, ask: Ask) -> None:
    expected = ask(gateway, "plain", SYSTEM, {"temperature": 0})
    assert ask(gateway, "told", None, {}) == expected
    assert ask(gateway, "told", None, {}) == expected, "and again, as the temperature is 0"


@pytest.mark.parametrize("ask", APIS)
def test_a_client_says_it_otherwise(gateway: Gateway, ask: Ask) -> None:
    warm = {"temperature": 1, "seed": 5, "top_k": 50}
    if ask is _anthropic:
        warm = {"temperature": 1, "top_k": 1}
    for system in ("Be brief.", SYSTEM):
        own = ask(gateway, "plain", system, warm)
        assert ask(gateway, "told", system, warm) == own


def test_an_empty_system_message_is_none(gateway: Gateway) -> None:
    cold = {"temperature": 0}
    assert _chat(gateway, "told", "", cold) == _chat(gateway, "plain", "", cold)
    assert _responses(gateway, "told", "", cold) == _responses(gateway, "plain", None, cold)


def test_instructions_of_the_input_count_as_the_clients(gateway: Gateway) -> None:
    item = {"type": "message", "role": "developer", "content": "Be brief."}
    user = {"type": "message", "role": "user", "content": ASKED}
    same = {"input": [item, user], "temperature": 0}
    assert _responses(gateway, "told", None, same) == _responses(gateway, "plain", None, same)


def test_completions_have_the_parameters_and_no_system_prompt(gateway: Gateway) -> None:
    body = {"prompt": "Bulkhead is", "max_tokens": 16}
    told = _post(gateway, "/v1/completions", {"model": "told", **body})
    cold = _post(gateway, "/v1/completions", {"model": "plain", "temperature": 0, **body})
    assert told["choices"] == cold["choices"]
    assert told["usage"]["prompt_tokens"] == cold["usage"]["prompt_tokens"]


def test_a_response_says_with_what_it_was_made(gateway: Gateway) -> None:
    body = {"model": "told", "input": ASKED, "max_output_tokens": 4, "store": False}
    assert _post(gateway, "/v1/responses", body)["temperature"] == 0


def test_tokens_are_counted_with_it(gateway: Gateway) -> None:
    counted = [
        _post(
            gateway,
            "/v1/messages/count_tokens",
            {"model": model, "messages": _messages(None), **more},
        )["input_tokens"]
        for model, more in (("told", {}), ("plain", {"system": SYSTEM}))
    ]
    assert counted[0] == counted[1]


def test_defaults_are_shown(gateway: Gateway) -> None:
    shown = _post(gateway, "/api/show", {"model": "told"})
    assert shown["system"] == SYSTEM
    assert shown["parameters"].splitlines()[1:] == ["temperature 0.0", "top_k 7"]
    model = gateway.client.get("/v1/models/told").json()
    assert model["default_parameters"] == {"temperature": 0, "top_k": 7}
    assert SYSTEM not in httpx.get(f"{gateway.url}/v1/models").text


def test_a_change_is_no_reason_for_another_worker() -> None:
    running = Gateway(models=(), config=CONFIG)
    try:
        running.load("told")
        pid = running.worker_pid("told")
        before = _chat(running, "told", None, {})
        text = CONFIG.replace(SYSTEM, "Be brief.").replace("temperature = 0", "min_p = 0.5")
        running.config_path.write_text(text)
        told = running.client.post("/admin/v1/reload").json()
        assert told["changed"] == {"told": ["system", "defaults"]}
        assert running.worker_pid("told") == pid
        assert _chat(running, "told", None, {"temperature": 0})[0] != before[0]
        shown = bulkhead("show", "told", "--url", running.url)
        assert re.search(r"^system +told: Be brief\.$", shown.stdout, re.MULTILINE)
        assert re.search(r"^defaults +told: top_k 7, min_p 0\.5$", shown.stdout, re.MULTILINE)
    finally:
        assert running.stop() == 0, running.log
