"""Kernels are compiled, and what a device prepares is prepared, before the first request comes."""

from __future__ import annotations

import time
from typing import Final

import mlx.core as mx

from protocol.requests import Sampling
from worker.engines.sequence import Engine, Sequence
from worker.sampling.settings import SamplingDefaults, make_row_sampling

# Chunks of prefill grow from the shortest to the longest: each length is a shape of its own.
_PROMPT_TOKENS: Final = (32, 128, 512, 2048)
_ANSWER_TOKENS: Final = 3
# A prompt that would take longer, all being compiled, is left to whoever brings it.
_LONG_S: Final = 0.25
_MOST_STEPS: Final = 64


# As clients ask: each is a graph of its own, alone and beside others.
_SAMPLINGS: Final = (
    Sampling(seed=0, temperature=1.0),
    Sampling(seed=0, temperature=0.7, top_p=0.9),
    Sampling(seed=0, temperature=1.0, top_p=0.9, top_k=20, min_p=0.05),
)


def warm(engine: Engine, context_tokens: int, vocabulary: int) -> None:
    """Run greedy and sampled answers, alone and together. The prompt cache keeps nothing of it."""
    if mx.default_device().type == mx.DeviceType.cpu:
        # Nothing is kept there for a shape or a graph: the first answer takes as long as the next.
        # One shows that the model works, and how fast.
        prompt = [0] * min(_PROMPT_TOKENS[0], max(1, context_tokens - _ANSWER_TOKENS))
        _run(engine, [Sequence("greedy", prompt, _ANSWER_TOKENS, None, ignore_eos=True)])
        mx.reset_peak_memory()
        return
    settings = [make_row_sampling(each, SamplingDefaults(), vocabulary) for each in _SAMPLINGS]
    for tokens in _PROMPT_TOKENS:
        if tokens + _ANSWER_TOKENS > context_tokens:
            break
        greedy = Sequence("greedy", [0] * tokens, _ANSWER_TOKENS, None, ignore_eos=True)
        sampled = [
            Sequence(f"sampled {at}", [0] * tokens, _ANSWER_TOKENS, each, ignore_eos=True)
            for at, each in enumerate(settings)
        ]
        if tokens == _PROMPT_TOKENS[0]:
            for each in sampled:
                _run(engine, [each])
            _run(engine, sampled)
        _run(engine, [greedy, *sampled])
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
