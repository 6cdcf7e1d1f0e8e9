"""What changes logits before a token is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import mlx.core as mx
from mlx_lm.sample_utils import make_logits_processors

from protocol.messages import Sampling

LogitsProcessor: TypeAlias = Callable[[mx.array, mx.array], mx.array]


def make_processors(sampling: Sampling) -> tuple[LogitsProcessor, ...]:
    """In order. They see all tokens before the one to come, so a sequence that goes on elsewhere
    has what it had.
    """
    if sampling.repetition_penalty is None:
        return ()
    return tuple(
        make_logits_processors(
            repetition_penalty=sampling.repetition_penalty,
            repetition_context_size=sampling.repetition_context_tokens,
        )
    )
