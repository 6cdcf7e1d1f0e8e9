"""SIGKILL inside each kind of part: the client's assembled answer is the same as without."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.gateway import START_S, Gateway, eventually

pytestmark = pytest.mark.slow

CONFIG = "[workers]\nrestart_limit = 1000\n"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
ASKED: dict[str, dict[str, Any]] = {
    "inside a reasoning block": {"enable_thinking": True, "temperature": 0},
    "inside tool arguments": {"tools": [TOOL], "tool_choice": "required", "seed": 3},
    "inside a constrained string": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}},
        "seed": 5,
    },
    "three answers": {"n": 3, "seed": 7, "temperature": 2},
    "log probabilities": {"logprobs": True, "top_logprobs": 2, "seed": 9, "temperature": 2},
    "penalties and a bias": {
        "frequency_penalty": 1.5,
        "presence_penalty": 0.5,
        "logit_bias": {"300": 5},
        "min_tokens": 30,
        "seed": 11,
    },
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    running = Gateway("--spare", "1", config=CONFIG)
    running.load()
    yield running
    assert running.stop() == 0, running.log


def _answer(
    gateway: Gateway, name: str, kill_at: Callable[[list[dict[str, Any]]], bool]
) -> tuple[list[dict[str, Any]], bool]:
    """The choices as a client assembles them, and whether the worker was killed on the way."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "What can you do?"}],
        "max_tokens": 120,
        "stream": True,
        **ASKED[name],
    }
    choices = [_empty() for _ in range(body.get("n", 1))]
    killed = False
    with gateway.client.stream("POST", "/v1/chat/completions", json=body, timeout=120) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                assert not line.startswith("event: error"), line
                continue
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                _put(choices[choice["index"]], choice)
            if not killed and kill_at(choices):
                killed = True
                os.kill(gateway.worker_pid(), signal.SIGKILL)
    return choices, killed


def _empty() -> dict[str, Any]:
    return {"content": "", "reasoning": "", "calls": {}, "logprobs": [], "finish_reason": None}


def _put(found: dict[str, Any], choice: dict[str, Any]) -> None:
    delta = choice["delta"]
    found["content"] += delta.get("content") or ""
    found["reasoning"] += delta.get("reasoning_content") or ""
    for call in delta.get("tool_calls") or ():
        function = call["function"]
        known = found["calls"].setdefault(call["index"], [function.get("name"), ""])
        known[1] += function["arguments"]
    if choice["logprobs"] is not None:
        found["logprobs"] += choice["logprobs"]["content"]
    found["finish_reason"] = choice["finish_reason"] or found["finish_reason"]


def _length(choices: list[dict[str, Any]]) -> int:
    calls = [call[1] for choice in choices for call in choice["calls"].values()]
    texts = [text for entry in choices for text in (entry["content"], entry["reasoning"])]
    return sum(map(len, calls + texts))


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize(
    "shares", [(0.1,), pytest.param((0.02, 0.2, 0.4, 0.6, 0.8, 0.95), marks=pytest.mark.chaos)]
)
def test_the_answer_is_the_same(gateway: Gateway, name: str, shares: tuple[float, ...]) -> None:
    undisturbed, _ = _answer(gateway, name, lambda _: False)
    assert all(entry["finish_reason"] for entry in undisturbed)
    whole = _length(undisturbed)
    kills = 0
    for share in shares:
        eventually(lambda: gateway.model()["state"] == "ready", START_S)
        found, killed = _answer(
            gateway, name, lambda choices, share=share: _length(choices) > share * whole
        )
        assert found == undisturbed
        kills += killed
    assert kills > 0
