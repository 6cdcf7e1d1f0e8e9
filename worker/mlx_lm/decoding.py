"""mlx-lm's loop over one sequence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step, generation_stream

from worker.mlx_lm.decoding_row import LogitsProcessor
from worker.mlx_lm.generator import Sampler


def stream() -> mx.StreamContext:
    """MLX's stream on which mlx-lm computes, for other computations that must come in order with
    mlx-lm's.
    """
    return mx.stream(generation_stream)


def decode(
    token_ids: list[int],
    model: Any,
    caches: list[Any],
    max_tokens: int,
    sampler: Sampler,
    processors: Iterable[LogitsProcessor],
) -> Iterator[int]:
    """Decode at most `max_tokens` tokens that follow `token_ids`. At the beginning the caches have
    seen all of `token_ids` but the last. When a token is given out, the caches have seen that
    token, too.
    """
    steps = generate_step(
        mx.array(token_ids[-1:]),
        model,
        max_tokens=max_tokens,
        sampler=sampler,
        logits_processors=_for_all(token_ids, processors),
        prompt_cache=caches,
    )
    for token_id, _ in steps:
        yield int(token_id)


def _for_all(token_ids: list[int], processors: Iterable[LogitsProcessor]) -> list[LogitsProcessor]:
    """Processors that get all tokens of the sequence. mlx-lm itself gives them only the tokens that
    it got or made.
    """
    processors = list(processors)
    if not processors:
        return []
    seen = mx.array(token_ids[:-1], dtype=mx.uint32)

    def of_all(processor: LogitsProcessor) -> LogitsProcessor:
        def process(tokens: mx.array, logits: mx.array) -> mx.array:
            return processor(mx.concatenate([seen, tokens.astype(mx.uint32)]), logits)

        return process

    return [of_all(each) for each in processors]
