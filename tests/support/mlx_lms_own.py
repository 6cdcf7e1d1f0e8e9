"""What mlx-lm itself makes of a model, in the process of the test."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm import load, stream_generate
from mlx_lm.models.cache import QuantizedKVCache

from tests.support.faults import after_import

# Code for `sitecustomize`: guesses are as cheap as on some machines, up to four tokens a step. Here
# that would depend on what else the machine does.
CHEAP_GUESSES = after_import(
    "worker.guesses.costs",
    "module.StepCosts.ratio = lambda self, rows, width: 1.0 if width <= 4 else float(width)",
)


class Answer(NamedTuple):
    text: str
    token_ids: list[int]


class MlxLm:
    """A model in mlx-lm's own hands. Its answers are greedy."""

    def __init__(self, folder: Path) -> None:
        self._model, self.tokenizer = load(str(folder))

    def complete(self, prompt: str, most_tokens: int) -> Answer:
        return self._answer(self.tokenizer.encode(prompt), most_tokens)

    def chat(self, text: str, most_tokens: int, **template: Any) -> Answer:
        """Of one message. `template` goes to the chat template."""
        messages = [{"role": "user", "content": text}]
        prompt_ids = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, **template
        )
        return self._answer(prompt_ids, most_tokens)

    def perplexity(self, token_ids: list[int], kv_bits: int | None = None) -> float:
        """Of the tokens after the first; with `kv_bits` by mlx-lm's quantized cache."""
        caches = None
        if kv_bits is not None:
            caches = [QuantizedKVCache(bits=kv_bits) for _ in self._model.layers]
        logits = self._model(mx.array([token_ids]), cache=caches)[0, :-1]
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        chosen = mx.take_along_axis(logprobs, mx.array(token_ids[1:])[:, None], axis=-1)
        return math.exp(-chosen.mean().item())

    def _answer(self, prompt_ids: list[int], most_tokens: int) -> Answer:
        steps = stream_generate(self._model, self.tokenizer, prompt_ids, most_tokens)
        ends = self.tokenizer.eos_token_ids
        token_ids = [step.token for step in steps if step.token not in ends]
        # The text of its steps would lack a space that an answer begins with.
        return Answer(self.tokenizer.decode(token_ids), token_ids)
