"""Log probabilities of the tokens that came, and of the likeliest in their place.

They are natural logarithms of the model's own distribution, in single precision: of its logits
before temperature, filters, penalties, biases and masks. vLLM's are, too (its "raw_logprobs"), and
OpenAI's, whose documents leave it open. So a token that was chosen can be less likely than every
alternative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import mlx.core as mx
import numpy as np

from protocol.requests import MOST_ALTERNATIVES
from worker.sampling.distribution import in_blocks, width

# What logits may take anyway: a chunk of a few tokens would read all weights for nearly nothing.
_LEAST_BYTES: Final = 64_000_000
# What one logit takes: in the model's type for all rows, and for one row at a time thrice in single
# precision.
_LOGIT_BYTES: Final = 16


class Score(NamedTuple):
    """Of one token: its log probability, and the likeliest ids with theirs, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Scores:
    """Of one token a row. The device computes them beside whatever else it does; to read them is to
    wait for it.
    """

    def __init__(self, logits: mx.array, token_ids: mx.array, alternatives: Sequence[int]) -> None:
        """`logits`: (rows, vocabulary), of any type. `token_ids`: (rows,). `alternatives`: how many
        each row wants.
        """
        self._alternatives = alternatives
        logprobs = logits.astype(mx.float32)
        logprobs = logprobs - mx.logsumexp(logprobs, axis=-1, keepdims=True)
        chosen = mx.take_along_axis(logprobs, token_ids[:, None], axis=-1)[:, 0]
        self._arrays = [chosen, *(_likeliest(logprobs) if any(alternatives) else ())]
        mx.async_eval(self._arrays)  # type: ignore[no-untyped-call]  # MLX's own stubs
        self._scores: list[Score] | None = None

    def read(self) -> list[Score]:
        if self._scores is None:
            chosen, *likeliest = [np.array(each).tolist() for each in self._arrays]
            self._arrays = []
            if likeliest:
                ids, logprobs = likeliest
                # Equals by their ids, so that they come in the same order always.
                pairs = [
                    sorted(zip(*each, strict=True), key=lambda pair: (-pair[1], pair[0]))
                    for each in zip(ids, logprobs, strict=True)
                ]
            else:
                pairs = [[] for _ in chosen]
            self._scores = [
                Score(logprob, tuple(top[:count]))
                for logprob, top, count in zip(chosen, pairs, self._alternatives, strict=True)
            ]
        return self._scores


def _likeliest(logprobs: mx.array) -> tuple[mx.array, mx.array]:
    """Ids and values of each row's largest, in no order: as many for every row, so that which of
    equals are among them doesn't depend on what other rows want.
    """
    vocabulary = logprobs.shape[1]
    count, each = min(MOST_ALTERNATIVES, vocabulary), width(vocabulary)
    if 2 * count * each > vocabulary:
        ids = mx.argpartition(logprobs, -count, axis=-1)[:, -count:]
        return ids, mx.take_along_axis(logprobs, ids, axis=-1)
    # They are in those blocks whose own largest are the largest.
    blocks = in_blocks(logprobs)
    found = mx.argpartition(blocks.max(axis=-1), -count, axis=-1)[:, -count:, None]
    values = mx.take_along_axis(blocks, found, axis=1).reshape(-1, count * each)
    ids = (found * each + mx.arange(each)).reshape(-1, count * each)
    best = mx.argpartition(values, -count, axis=-1)[:, -count:]
    return mx.take_along_axis(ids, best, axis=-1), mx.take_along_axis(values, best, axis=-1)


def scored_chunk(rows: int, vocabulary: int, working_bytes: int) -> int:
    """How long a chunk may be for so many rows, a power of two, for its logits to take no more than
    a step may, which has `working_bytes`.
    """
    tokens = max(working_bytes, _LEAST_BYTES) // (rows * vocabulary * _LOGIT_BYTES)
    return 1 << max(tokens, 1).bit_length() - 1


def score_prompt(
    logits: mx.array, token_ids: list[int], begin: int, end: int, alternatives: int
) -> list[Score]:
    """Scores of the tokens of a prompt after `begin` up to `end`, the last one included.

    `logits`: (tokens or more, vocabulary), of the prompt's tokens from `begin` on.
    """
    following = token_ids[begin + 1 : end + 1]
    wanted = [alternatives] * len(following)
    return Scores(logits[: len(following)], mx.array(following), wanted).read()
