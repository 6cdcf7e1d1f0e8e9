"""SmolLM2 over HTTP: whatever befalls an answer, its text is the one that mlx-lm itself makes."""

from __future__ import annotations

import functools
import math
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import held_steps, sitecustomize
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.mlx_lms_own import CHEAP_GUESSES, Answer, MlxLm
from tests.support.real_models import real_model
from tests.support.streams import open_stream

MODEL = "smollm2"
BLOCK = 64
# Most of its characters take several tokens. More than a block of tokens is the same in both.
NOTE = 'Read this note: "Grüße 🎉, ça va? こんにちは 👍 日本語, naïve." '
AGAIN = NOTE + "Say it again, word for word."
BRANCH = NOTE + "Which languages are these?"
TOKENS = 16
SHORT = (
    "The capital of France is",
    "Two plus two is",
    "Once upon a time",
    "def add(a, b):",
    "Water boils at",
    "My favourite colour is",
    "The moon",
    "1, 2, 3,",
)
SHORT_TOKENS = 5
TEXT = "The sea was calm that morning, and the old man rowed out alone, but he was not afraid."


@pytest.fixture(scope="module")
def folder() -> Path:
    return real_model(MODEL)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file is there, no engine takes a step."""
    return tmp_path_factory.mktemp("flags") / "held"


@pytest.fixture(scope="module")
def gateway(
    folder: Path, held: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    site = sitecustomize(tmp_path_factory.mktemp("site"), CHEAP_GUESSES + held_steps(held))
    running = Gateway(models=(str(folder),), environment=site)
    running.client.timeout = START_S * 3
    running.order("load", MODEL, wait=False)
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture(scope="module")
def mlx_lm(folder: Path) -> MlxLm:
    return MlxLm(folder)


@pytest.fixture(scope="module")
def reference(mlx_lm: MlxLm) -> Callable[[str], Answer]:
    """mlx-lm's answer to a message."""
    return functools.cache(lambda text: mlx_lm.chat(text, TOKENS))


def _ask(gateway: Gateway, text: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    """The text, and the usage."""
    answer = gateway.chat(text, MODEL, max_tokens=TOKENS, temperature=0, **fields)
    told = answer.raise_for_status().json()
    return told["choices"][0]["message"]["content"], told["usage"]


def test_text_is_mlx_lms_alone_after_a_branch_and_from_the_prompt_cache(
    gateway: Gateway, reference: Callable[[str], Answer]
) -> None:
    for message, cached in ((AGAIN, 0), (BRANCH, BLOCK), (AGAIN, BLOCK)):
        text, usage = _ask(gateway, message)
        assert text == reference(message).text
        assert usage["prompt_tokens_details"]["cached_tokens"] == cached


@pytest.mark.slow
def test_text_is_mlx_lms_with_guesses(gateway: Gateway, reference: Callable[[str], Answer]) -> None:
    expected = reference(AGAIN).text
    prediction = {"type": "content", "content": f"{expected[:8]} Or so. {expected[8:]}"}
    text, usage = _ask(gateway, AGAIN, prediction=prediction)
    assert text == expected
    details = usage["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > TOKENS / 3
    assert details["rejected_prediction_tokens"] > 0


@pytest.mark.slow
def test_texts_are_mlx_lms_eight_at_once(gateway: Gateway, mlx_lm: MlxLm, held: Path) -> None:
    gateway.load(MODEL)

    def ask(prompt: str) -> str:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": SHORT_TOKENS, "temperature": 0}
        answer = gateway.client.post("/v1/completions", json=body).raise_for_status().json()
        text: str = answer["choices"][0]["text"]
        return text

    held.touch()
    with ThreadPoolExecutor(len(SHORT)) as threads:
        answers = threads.map(ask, SHORT)
        try:
            eventually(lambda: gateway.model(MODEL)["active_requests"] == len(SHORT))
        finally:
            held.unlink()
        texts = list(answers)
    assert texts == [mlx_lm.complete(prompt, SHORT_TOKENS).text for prompt in SHORT]
    assert "Paris" in texts[0]


@pytest.mark.slow
def test_stream_is_mlx_lms_text_after_a_kill(
    gateway: Gateway, reference: Callable[[str], Answer], mlx_lm: MlxLm
) -> None:
    """Characters of several tokens arrive whole, whichever worker made the first of them."""
    gateway.load(MODEL)
    expected = reference(AGAIN)
    assert any("\ufffd" in mlx_lm.tokenizer.decode([token]) for token in expected.token_ids)
    killed = gateway.worker_pid(MODEL)
    stream = open_stream(gateway, AGAIN, MODEL, max_tokens=TOKENS, temperature=0)
    eventually(lambda: stream.text, START_S)
    os.kill(killed, signal.SIGKILL)
    stream.join()
    assert (stream.text, stream.done) == (expected.text, True)
    assert gateway.worker_pid(MODEL) != killed


@pytest.mark.slow
def test_text_is_mlx_lms_after_an_unload(
    gateway: Gateway, reference: Callable[[str], Answer]
) -> None:
    gateway.order("unload", MODEL).raise_for_status()
    assert _ask(gateway, AGAIN)[0] == reference(AGAIN).text


def _perplexity(gateway: Gateway, model_id: str, token_ids: list[int]) -> float:
    body = {"model": model_id, "prompt": token_ids, "max_tokens": 0, "echo": True, "logprobs": 0}
    answer = gateway.client.post("/v1/completions", json=body).raise_for_status().json()
    logprobs = answer["choices"][0]["logprobs"]["token_logprobs"]
    assert (len(logprobs), logprobs[0]) == (len(token_ids), None)
    return math.exp(-sum(logprobs[1:]) / (len(logprobs) - 1))


def test_perplexity_is_mlx_lms(gateway: Gateway, mlx_lm: MlxLm) -> None:
    token_ids = mlx_lm.tokenizer.encode(TEXT)
    found = _perplexity(gateway, MODEL, token_ids)
    assert found == pytest.approx(mlx_lm.perplexity(token_ids), abs=1e-3)


@pytest.mark.slow
def test_quantized_caches_lose_no_more_than_mlx_lms(
    folder: Path, mlx_lm: MlxLm, start_gateway: Callable[..., Gateway]
) -> None:
    token_ids = mlx_lm.tokenizer.encode(TEXT)
    plain = mlx_lm.perplexity(token_ids)
    models = [f'[models.bits{bits}]\npath = "{folder}"\nkv_bits = {bits}\n' for bits in (8, 4)]
    running = start_gateway(models=(), config="".join(models))
    for bits in (8, 4):
        own_loss = mlx_lm.perplexity(token_ids, bits) - plain
        loss = _perplexity(running, f"bits{bits}", token_ids) - plain
        print(f"kv_bits {bits}: perplexity {plain:.4f} {loss:+.4f}, with mlx-lm {own_loss:+.4f}")
        assert loss != 0
        assert abs(loss) <= abs(own_loss) + 1e-3
