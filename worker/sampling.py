"""Samplers whose choice depends on the request alone, not on who shares its batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors

from protocol.messages import Sampling

LogitsProcessor: TypeAlias = Callable[[mx.array, mx.array], mx.array]

_MASK64: Final = (1 << 64) - 1
# Less is greedy for any two logits that differ; far less makes them infinite.
_LEAST_TEMPERATURE: Final = 1e-6


@dataclass(frozen=True)
class SamplingDefaults:
    """What generation_config.json says; OpenAI's defaults where it says nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0


class KeyedSampler:
    """Samples with a random key made from (seed, position).

    mlx-lm's own samplers draw from MLX's global state, which advances with every row of the batch:
    the same seed would give another text beside other requests.
    """

    def __init__(
        self,
        seed: int,
        temperature: float,
        top_p: float,
        top_k: int,
        min_p: float,
        position: int = 0,
    ) -> None:
        """`position` is that of the first token to sample, counted from the prompt's end."""
        self._stream = _splitmix64(seed & _MASK64)
        self._inverse_temperature = 1.0 / temperature
        self._top_p = top_p
        self._top_k = top_k
        self._min_p = min_p
        self._first = self._position = position

    def again_after(self, tokens: int) -> KeyedSampler:
        """The same from so many tokens after its own first one, whatever was drawn since."""
        again = copy.copy(self)
        again._first = again._position = self._first + tokens
        return again

    def __call__(self, logprobs: mx.array) -> mx.array:
        """Log probabilities of shape (1, vocabulary) to token ids of shape (1,)."""
        if 0.0 < self._top_p < 1.0:
            logprobs = apply_top_p(logprobs, self._top_p)
        if self._min_p > 0.0:
            logprobs = apply_min_p(logprobs, self._min_p)
        if self._top_k > 0:
            logprobs = apply_top_k(logprobs, self._top_k)
        mixed = (self._stream + self._position) & _MASK64
        self._position += 1
        key = mx.array([mixed >> 32, mixed & 0xFFFFFFFF], dtype=mx.uint32)
        return mx.random.categorical(logprobs * self._inverse_temperature, key=key)


def make_sampler(
    sampling: Sampling, defaults: SamplingDefaults, vocabulary: int, position: int = 0
) -> KeyedSampler | None:
    """A sampler for one request, or None for greedy: rows that share mlx-lm's fallback sampler
    are sampled in one call.
    """
    temperature = defaults.temperature if sampling.temperature is None else sampling.temperature
    if temperature < _LEAST_TEMPERATURE:
        return None
    top_k = defaults.top_k if sampling.top_k is None else sampling.top_k
    return KeyedSampler(
        sampling.seed,
        temperature,
        defaults.top_p if sampling.top_p is None else sampling.top_p,
        # mlx-lm raises unless 0 < top_k < vocabulary; as many or more filter nothing.
        top_k if top_k < vocabulary else 0,
        defaults.min_p if sampling.min_p is None else sampling.min_p,
        position,
    )


def make_processors(sampling: Sampling) -> tuple[LogitsProcessor, ...]:
    """What changes the logits before one is chosen, in order. They see all tokens before it, so a
    sequence that goes on elsewhere has what it had.
    """
    if sampling.repetition_penalty is None:
        return ()
    return tuple(
        make_logits_processors(
            repetition_penalty=sampling.repetition_penalty,
            repetition_context_size=sampling.repetition_context_tokens,
        )
    )


def _splitmix64(value: int) -> int:
    """Spread neighbouring seeds over 64 bits (Steele, Lea, Flood: Fast Splittable PRNGs, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)
