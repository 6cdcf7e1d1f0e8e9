"""The tokens of one sequence whose prompt is computed, by mlx-lm: alone, or after a draft model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import mlx.core as mx
from mlx_lm.generate import generate_step, speculative_generate_step

from worker.engines.caches import Caches
from worker.engines.sequence import Sequence
from worker.mlx_lm.generator import Tap
from worker.sampling.adjustments import Adjuster
from worker.sampling.batch import BatchSampler
from worker.sampling.scores import Score, Scores
from worker.sampling.settings import RowSampling
from worker.structure.sampler import ConstrainedSampler

# Chooses a token of shape (1,) from log probabilities of shape (1, vocabulary), so many tokens
# after the sequence's first one.
Draw: TypeAlias = Callable[[int, mx.array], mx.array]
# Logits (1, vocabulary) of a token to others, by all tokens that mlx-lm was given before it.
LogitsProcessor: TypeAlias = Callable[[mx.array, mx.array], mx.array]
# With a draft model: the last token is in neither cache, and the one before it perhaps not in the
# draft model's.
UNSEEN_TOKENS: Final = 2


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
    steps = generate_step(
        mx.array(sequence.token_ids[-1:]),
        sampler.tap,
        max_tokens=sequence.max_tokens,
        sampler=sampler,
        logits_processors=_budget(sequence),
        prompt_cache=caches,
    )
    for token_id, _ in steps:
        yield Decoded(int(token_id), sampler.take_score())


def decode_ahead(
    sequence: Sequence, model: Any, draft: Any, draft_tokens: int, caches: Caches, made: list[Any]
) -> Iterator[Decoded]:
    """The same tokens, of which the draft model guesses some at a time and the model checks them
    together. `made` are caches of both; with each token that is given out, they may not have seen
    the last `UNSEEN_TOKENS`, and what they hold after them is of no use.
    """
    sampler = None
    if sequence.sampling is not None:
        sampler = RoundSampler(_draw(sequence.sampling), sequence.max_tokens, draft_tokens)
    layered = _Layered(model, caches.model_part(made))
    steps = speculative_generate_step(
        mx.array(sequence.token_ids[-1:]),
        layered,
        draft,
        num_draft_tokens=draft_tokens,
        max_tokens=sequence.max_tokens,
        sampler=sampler,
        logits_processors=[*_budget(sequence), *_adjustments(sequence)],
        prompt_cache=made,
    )
    for token_id, _, _ in steps:
        if sampler is not None:
            sampler.given += 1
        yield Decoded(int(token_id), layered.score(int(token_id), sequence.logprobs))


class RoundSampler:
    """Tells mlx-lm's calls of one sampler for two models apart, and which tokens they are for.

    In each round the draft model guesses some tokens, one a call. Then the model samples those
    same ones and the next, in one call, or one by one where there are processors. A position has
    one random number: the guess is right as often as the two models agree, and what is accepted is
    what the model would have made alone.
    """

    def __init__(self, draw: Draw, max_tokens: int, draft_tokens: int) -> None:
        self.given = 0
        self._draw = draw
        self._max_tokens = max_tokens
        self._draft_tokens = draft_tokens
        self._round = -1
        self._done = 0

    def __call__(self, logprobs: mx.array) -> mx.array:
        """Log probabilities (tokens, vocabulary) to token ids (tokens,)."""
        if self._round != self.given:
            self._round, self._done = self.given, 0
        guesses = min(self._max_tokens - self.given, self._draft_tokens)
        first = self.given + self._done - (guesses if self._done >= guesses else 0)
        rows = logprobs.shape[0]
        self._done += rows
        drawn = [self._draw(first + row, logprobs[row : row + 1]) for row in range(rows)]
        return mx.concatenate(drawn)


class _Layered:
    """mlx-lm takes the model's caches for as many as it has layers; some have fewer."""

    def __init__(self, model: Any, caches: list[Any]) -> None:
        self.layers = caches
        self._model = model
        self._given = 0

    def __call__(self, tokens: mx.array, cache: list[Any]) -> Any:
        self._logits = self._model(tokens, cache=cache)
        self._given = 0
        return self._logits

    def score(self, token_id: int, logprobs: int | None) -> Score | None:
        """Of the next token that is given out: those of a round come from one call."""
        place, self._given = self._given, self._given + 1
        if logprobs is None:
            return None
        (score,) = Scores(self._logits[:, place], mx.array([token_id]), [logprobs]).read()
        return score


def _draw(sampling: RowSampling) -> Draw:
    def draw(at: int, logprobs: mx.array) -> mx.array:
        sampler = BatchSampler[int](lambda: (0,))
        sampler.add(0, sampling.again_after(at))
        return sampler(logprobs)

    return draw


def _budget(sequence: Sequence) -> list[LogitsProcessor]:
    budget = sequence.budget
    if budget is None:
        return []
    seen = _seen(sequence)
    return [lambda tokens, logits: budget(_after(seen, tokens), logits)]


def _adjustments(sequence: Sequence) -> list[LogitsProcessor]:
    """Where mlx-lm takes tokens back, which samplers aren't told of."""
    adjustments = sequence.adjustments
    if adjustments is None:
        return []
    seen = _seen(sequence)

    def adjust(tokens: mx.array, logits: mx.array) -> mx.array:
        history = adjustments.begin(_after(seen, tokens), vocabulary=logits.shape[-1])
        return Adjuster([history]).adjust(logits, logits)

    return [adjust]


def _seen(sequence: Sequence) -> mx.array:
    return mx.array(sequence.token_ids[:-1], dtype=mx.uint32)


def _after(seen: mx.array, tokens: mx.array) -> mx.array:
    """mlx-lm shows what it was given itself: what the caches had seen is put before that."""
    return mx.concatenate([seen, tokens.astype(mx.uint32)])
