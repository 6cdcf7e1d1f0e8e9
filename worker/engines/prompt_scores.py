"""Scores of a prompt's tokens, chunk by chunk: all its logits at once would be gigabytes."""

from __future__ import annotations

from typing import Final

import mlx.core as mx

from worker.engines.sequence import Sequence
from worker.sampling.scores import Score, Scores

# What logits may take anyway: a chunk of a few tokens would read all weights for nearly nothing.
_LEAST_BYTES: Final = 64_000_000
# What one logit takes: in the model's type for all rows, and for one row at a time thrice in single
# precision.
_LOGIT_BYTES: Final = 16


def scored_chunk(rows: int, vocabulary: int, working_bytes: int) -> int:
    """How long a chunk may be for so many rows, a power of two, for its logits to take no more than
    a step may, which has `working_bytes`.
    """
    tokens = max(working_bytes, _LEAST_BYTES) // (rows * vocabulary * _LOGIT_BYTES)
    return 1 << max(tokens, 1).bit_length() - 1


def score_prompt(logits: mx.array, sequence: Sequence, begin: int, end: int) -> list[Score]:
    """Of what follows the tokens of a prompt from `begin` up to `end`, whose logits these are:
    (tokens or more, vocabulary).
    """
    following = sequence.token_ids[begin + 1 : end + 1]
    alternatives = [sequence.prompt_logprobs or 0] * len(following)
    return Scores(logits[: len(following)], mx.array(following), alternatives).read()
