"""Kernels are compiled, and what a device prepares is prepared, before the first request comes."""

from __future__ import annotations

import time
from typing import Final

import mlx.core as mx

from protocol.messages import Sampling
from worker.engines.sequence import Engine, Sequence
from worker.sampling.settings import SamplingDefaults, make_row_sampling

# Chunks of prefill grow from the shortest to the longest: each length is a shape of its own.
_PROMPT_TOKENS: Final = (32, 128, 512, 2048)
_ANSWER_TOKENS: Final = 3
# A prompt that would take longer, all being compiled, is left to whoever brings it.
_LONG_S: Final = 0.25
_MOST_STEPS: Final = 64


def warm(engine: Engine, context_tokens: int, vocabulary: int) -> None:
    """Run greedy and sampled answers together. The prompt cache keeps nothing of it."""
    sampling = Sampling(seed=0, temperature=1.0, top_p=0.9, top_k=20, min_p=0.05)
    settings = make_row_sampling(sampling, SamplingDefaults(), vocabulary)
    for tokens in _PROMPT_TOKENS:
        if tokens + _ANSWER_TOKENS > context_tokens:
            break
        greedy = Sequence("greedy", [0] * tokens, _ANSWER_TOKENS, None, ignore_eos=True)
        sampled = Sequence("sampled", [0] * tokens, _ANSWER_TOKENS, settings, ignore_eos=True)
        _run(engine, [greedy, sampled])
        began_at = time.monotonic()
        _run(engine, [greedy])
        if (time.monotonic() - began_at) * 4 > _LONG_S:
            break
    mx.reset_peak_memory()


def _run(engine: Engine, together: list[Sequence]) -> None:
    for sequence in together:
        engine.add(sequence)
    # An engine that has no room for them is left as it is.
    for _ in range(_MOST_STEPS):
        if not engine.active + engine.waiting:
            break
        engine.step()
    engine.remove([sequence.request_id for sequence in together])
