"""The tokens of one sequence whose prompt is computed, by mlx-lm: alone, or after a draft model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import mlx.core as mx

from worker.engines.caches import Caches
from worker.engines.sequence import Sequence
from worker.mlx_lm import decoding as mlx_lm
from worker.mlx_lm.generator import LogitsProcessor, Tap
from worker.sampling.adjustments import Adjuster
from worker.sampling.batch import BatchSampler
from worker.sampling.scores import Score, Scores
from worker.sampling.settings import RowSampling
from worker.structure.sampler import ConstrainedSampler


class Decoded(NamedTuple):
    token_id: int
    score: Score | None


class RowSampler:
    """Samples the only row that there is, and knows what the model gave for it."""

    def __init__(self, sequence: Sequence, model: Any) -> None:
        self.tap = Tap(model)
        self._sampler = ConstrainedSampler[int](lambda: (0,), self.tap.take)
        self._sampler.add(
            0,
            sequence.sampling,
            sequence.adjustments,
            sequence.token_ids,
            sequence.logprobs,
            sequence.constrained,
        )

    def __call__(self, logprobs: mx.array) -> mx.array:
        return self._sampler(logprobs)

    def take_score(self) -> Score | None:
        return self._sampler.take_score(0)

    def take_broken(self) -> str | None:
        """Why the row can't go on, if so."""
        return self._sampler.take_broken().get(0)


def decode(sequence: Sequence, caches: list[Any], sampler: RowSampler) -> Iterator[Decoded]:
    """Tokens up to the longest answer. The caches have seen all of the sequence but its last token;
    with each token that is given out, they have seen that one too. `sampler` is the sequence's.
    """
    for token_id in mlx_lm.decode(
        sequence.token_ids, sampler.tap, caches, sequence.max_tokens, sampler, _budget(sequence)
    ):
        yield Decoded(token_id, sampler.take_score())


def decode_ahead(
    sequence: Sequence, model: Any, draft: Any, draft_tokens: int, caches: Caches, made: list[Any]
) -> Iterator[Decoded]:
    """The same tokens, of which the draft model guesses some at a time and the model checks them
    together. `made` are caches of both; with each token that is given out, they may not have seen
    the last `UNSEEN_TOKENS`, and what they hold after them is of no use.
    """
    guessed = mlx_lm.decode_ahead(
        sequence.token_ids,
        model,
        draft,
        draft_tokens,
        *caches.parts(made),
        sequence.max_tokens,
        None if sequence.sampling is None else _draw(sequence.sampling),
        [*_budget(sequence), *_adjustments(sequence)],
    )
    for token_id, logits in guessed:
        score = None
        if sequence.logprobs is not None:
            (score,) = Scores(logits, mx.array([token_id]), [sequence.logprobs]).read()
        yield Decoded(token_id, score)


def _draw(sampling: RowSampling) -> mlx_lm.Draw:
    def draw(at: int, logprobs: mx.array) -> mx.array:
        sampler = BatchSampler[int](lambda: (0,))
        sampler.add(0, sampling.again_after(at))
        return sampler(logprobs)

    return draw


def _budget(sequence: Sequence) -> list[LogitsProcessor]:
    return [] if sequence.budget is None else [sequence.budget]


def _adjustments(sequence: Sequence) -> list[LogitsProcessor]:
    """Where mlx-lm takes tokens back, which samplers aren't told of."""
    adjustments = sequence.adjustments
    if adjustments is None:
        return []

    def adjust(tokens: mx.array, logits: mx.array) -> mx.array:
        history = adjustments.begin(tokens, vocabulary=logits.shape[-1])
        return Adjuster([history]).adjust(logits, logits)

    return [adjust]
