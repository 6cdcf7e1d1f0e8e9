"""Kernels are compiled, and what a device prepares is prepared, before the first request comes."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Final

import mlx.core as mx

from protocol.requests import Sampling
from worker.engines.sequence import Engine, Sequence
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.keys import BLOCK_TOKENS, KEY_BYTES, chain
from worker.prompt_cache.path import Path
from worker.sampling.settings import SamplingDefaults, make_row_sampling

# Chunks of prefill grow from the shortest to the longest: each length is a shape of its own.
_PROMPT_TOKENS: Final = (32, 128, 512, 2048)
# A block that is kept and the token that decoding begins with: enough to tell the speed by, without
# which the first prompt would be cut into short chunks.
_KEPT_TOKENS: Final = BLOCK_TOKENS + 1
_ANSWER_TOKENS: Final = 3
_ROOT: Final = bytes(KEY_BYTES)
# A prompt that would take longer, all being compiled, is left to whoever brings it.
_LONG_S: Final = 0.25
_MOST_STEPS: Final = 64


# As clients ask: each is a graph of its own, alone and beside others.
_SAMPLINGS: Final = (
    Sampling(seed=0, temperature=1.0),
    Sampling(seed=0, temperature=0.7, top_p=0.9),
    Sampling(seed=0, temperature=1.0, top_p=0.9, top_k=20, min_p=0.05),
)


def warm(
    engine: Engine, prompt_cache: PromptCache | None, context_tokens: int, vocabulary: int
) -> None:
    """Run greedy and sampled answers, alone and together, and one whose prompt is kept."""
    with nullcontext() if prompt_cache is None else prompt_cache.rehearsal():
        most_tokens = max(1, context_tokens - _ANSWER_TOKENS)
        if mx.default_device().type == mx.DeviceType.cpu:
            # Nothing is kept there for a shape or a graph: the first answer takes as long as the
            # next. One shows that the model works, and how fast.
            _run(engine, [_kept(min(_KEPT_TOKENS, most_tokens), prompt_cache)])
        else:
            compile_kernels(engine, prompt_cache, most_tokens, vocabulary)
    mx.reset_peak_memory()


def compile_kernels(
    engine: Engine, prompt_cache: PromptCache | None, most_tokens: int, vocabulary: int
) -> None:
    """For a GPU, with prompts of up to so many tokens, as far as they are soon computed."""
    settings = [make_row_sampling(each, SamplingDefaults(), vocabulary) for each in _SAMPLINGS]
    for tokens in _PROMPT_TOKENS:
        if tokens > most_tokens:
            return
        greedy = Sequence("greedy", [0] * tokens, _ANSWER_TOKENS, None, ignore_eos=True)
        sampled = [
            Sequence(f"sampled {at}", [0] * tokens, _ANSWER_TOKENS, each, ignore_eos=True)
            for at, each in enumerate(settings)
        ]
        if tokens == _PROMPT_TOKENS[0]:
            for each in sampled:
                _run(engine, [each])
            _run(engine, sampled)
            if most_tokens >= _KEPT_TOKENS:
                # It is cut into blocks for the prompt cache, and then taken from there.
                _run(engine, [_kept(_KEPT_TOKENS, prompt_cache)])
                _run(engine, [_kept(_KEPT_TOKENS, prompt_cache)])
        _run(engine, [greedy, *sampled])
        began_at = time.monotonic()
        _run(engine, [greedy])
        if (time.monotonic() - began_at) * 4 > _LONG_S:
            return


def _kept(tokens: int, prompt_cache: PromptCache | None) -> Sequence:
    token_ids = [0] * tokens
    path = None
    if prompt_cache is not None:
        keys = tuple(chain(_ROOT, token_ids))
        path = Path(_ROOT, keys, boundaries=(1,) if keys and prompt_cache.needs_snapshots else ())
    return Sequence("kept", token_ids, _ANSWER_TOKENS, None, ignore_eos=True, path=path)


def _run(engine: Engine, together: list[Sequence]) -> None:
    for sequence in together:
        engine.add(sequence)
    # An engine that has no room for them is left as it is.
    for _ in range(_MOST_STEPS):
        if not engine.active + engine.waiting:
            break
        engine.step()
        engine.keep()
    engine.remove([sequence.request_id for sequence in together])
