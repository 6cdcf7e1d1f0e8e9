"""Models that only mlx-vlm knows, over HTTP: they are served as mlx-lm's are."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from typing import Any, Final

import pytest

pytest.importorskip("mlx_vlm", reason="the extra vision is not installed")

from tests.support.gateway import START_S, Gateway, eventually
from tests.support.streams import open_stream
from tests.support.vlm_architectures import TINY_VLM
from tests.support.vlm_folders import write_vlm

# Windows and experts, shifts of positions, states, full attention, and latents.
BATCHED: Final = ("cohere2_moe", "glm4v", "lfm2_vl", "internvl_chat", "mistral_large3")
# Each takes seconds.
SOME_SLOW: Final = [
    *BATCHED[:2],
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in BATCHED[2:]),
]
# It runs alone.
ALONE: Final = "deepseek_v4"
# Its tokens depend on those behind them.
REFUSED: Final = "paligemma"
BLOCK: Final = 64
STORY: Final = "Tell me a story."
LONG: Final = {"max_tokens": 600, "ignore_eos": True, "temperature": 0}
QUICK: Final = {"max_tokens": 80, "reasoning_effort": "none"}
TOOLS: Final = {"tool_choice": "required", "parallel_tool_calls": False}
SCHEMA: Final = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("models")
    for kind in (*BATCHED, ALONE, REFUSED):
        write_vlm(folder / kind, {**TINY_VLM[kind], "model_type": kind})
    config = f'[memory]\nbudget = "6GB"\n[models]\ndiscover = ["{folder}"]\n'
    running = Gateway(config=config, models=())
    yield running
    assert running.stop() == 0, running.log


def _complete(gateway: Gateway, model: str, prompt: list[int]) -> tuple[str, int]:
    """The text, and how many tokens of the prompt were cached."""
    body = {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0}
    answer = gateway.client.post("/v1/completions", json=body).raise_for_status().json()
    cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["text"], cached


@pytest.mark.parametrize("model", [*BATCHED, ALONE])
def test_schemas_and_tools_hold(model: str, gateway: Gateway) -> None:
    wanted: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
    said = gateway.say("Hello", model, response_format=wanted, **QUICK)
    assert json.loads(said)["a"] in ("x", "y")
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
    asked = gateway.chat("Hello", model, tools=[tool], **TOOLS, **QUICK)
    (call,) = asked.raise_for_status().json()["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["a"] in ("x", "y")


@pytest.mark.parametrize("model", BATCHED)
def test_a_second_prompt_is_found_again(model: str, gateway: Gateway) -> None:
    drawn = random.Random(5)
    prompt = [drawn.randrange(10, 600) for _ in range(4 * BLOCK + 10)]
    text, cached = _complete(gateway, model, prompt)
    assert cached == 0
    assert _complete(gateway, model, prompt) == (text, 4 * BLOCK)


@pytest.mark.parametrize("model", SOME_SLOW)
def test_a_killed_worker_costs_no_token(model: str, gateway: Gateway) -> None:
    whole = open_stream(gateway, STORY, model, **LONG).join()
    assert whole.done
    killed = open_stream(gateway, STORY, model, **LONG)
    eventually(lambda: len(killed.text) > 10, START_S)
    # On a busy machine the stream may be over by now.
    os.kill(gateway.worker_pid(model), signal.SIGKILL)
    killed.join()
    assert (killed.done, killed.text) == (True, whole.text)


def test_a_model_that_runs_alone_says_so(gateway: Gateway) -> None:
    for model in BATCHED:
        gateway.load(model)
        assert gateway.model(model)["reason"] is None
    gateway.load(ALONE)
    assert "above all after a break" in gateway.model(ALONE)["reason"]


def test_a_model_that_would_answer_wrongly_is_refused_at_the_load(gateway: Gateway) -> None:
    answer = gateway.chat("Hello", REFUSED, **QUICK)
    assert answer.status_code >= 400
    assert "depend on those behind them" in answer.text


@pytest.mark.slow
def test_a_check_reads_it(gateway: Gateway) -> None:
    answer = gateway.client.post(f"/admin/v1/models/{BATCHED[0]}/check")
    report = answer.raise_for_status().json()
    assert (report["state"], report["reason"]) == ("done", None)
    faults = [finding for finding in report["findings"] if finding["severity"] == "fault"]
    # Numbers of random weights are not those of a trained model.
    assert {fault["section"] for fault in faults} <= {"numbers", "chat"}
