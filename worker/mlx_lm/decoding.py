"""mlx-lm's loops over one sequence: alone, or with a draft model that guesses ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import mlx.core as mx
from mlx_lm.generate import generate_step, generation_stream, speculative_generate_step

from worker.mlx_lm.generator import LogitsProcessor, Sampler

# Chooses a token of shape (1,) from log probabilities of shape (1, vocabulary), for the position so
# many tokens after the sequence's first one.
Draw: TypeAlias = Callable[[int, mx.array], mx.array]
# With a draft model: the last token is in neither cache, and the one before it perhaps not in the
# draft model's.
UNSEEN_TOKENS: Final = 2


class CachedModel(NamedTuple):
    """A model, and its caches of the sequence."""

    model: Any
    caches: list[Any]


class Guessed(NamedTuple):
    """A token, and the model's logits for its position: (1, vocabulary)."""

    token_id: int
    logits: mx.array


def stream() -> mx.StreamContext:
    """The stream on which mlx-lm computes, for work that must keep its order."""
    return mx.stream(generation_stream)


def decode(
    token_ids: list[int],
    model: Any,
    caches: list[Any],
    max_tokens: int,
    sampler: Sampler,
    processors: Iterable[LogitsProcessor],
) -> Iterator[int]:
    """At most `max_tokens` tokens after these, of which the caches have seen all but the last. When
    a token is given out, the caches have seen it too.
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


def decode_ahead(
    token_ids: list[int],
    checking: CachedModel,
    guessing: CachedModel,
    draft_tokens: int,
    max_tokens: int,
    draw: Draw | None,
    processors: Iterable[LogitsProcessor],
) -> Iterator[Guessed]:
    """The same tokens. One model guesses `draft_tokens` at a time, and the other checks them
    together. Without `draw` they are the likeliest. With each token that is given out, the caches
    may not have seen the last `UNSEEN_TOKENS`, and their content after them is of no use.
    """
    sampler = None if draw is None else RoundSampler(draw, max_tokens, draft_tokens)
    layered = _Layered(checking)
    steps = speculative_generate_step(
        mx.array(token_ids[-1:]),
        layered,
        guessing.model,
        num_draft_tokens=draft_tokens,
        max_tokens=max_tokens,
        sampler=sampler,
        logits_processors=_for_all(token_ids, processors),
        prompt_cache=[*checking.caches, *guessing.caches],
    )
    for token_id, _, _ in steps:
        if sampler is not None:
            sampler.given += 1
        yield Guessed(int(token_id), layered.next_logits())


class RoundSampler:
    """Finds out for which positions mlx-lm calls the one sampler of two models.

    In each round the draft model guesses some tokens, one in each call. Then the model samples the
    same positions and the next one, in one call, or one by one if there are processors. Each
    position has one random number. So a guess is right if the two models agree, and the accepted
    tokens are those that the model would have made alone.
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
    """A model as mlx-lm wants it, with one cache for each layer. Some models have fewer caches."""

    def __init__(self, of: CachedModel) -> None:
        self._model, self.layers = of
        self._given = 0

    def __call__(self, tokens: mx.array, cache: list[Any]) -> Any:
        self._logits = self._model(tokens, cache=cache)
        self._given = 0
        return self._logits

    def next_logits(self) -> mx.array:
        """The logits for the next token that is given out. One call gives those of a round."""
        place, self._given = self._given, self._given + 1
        logits: mx.array = self._logits[:, place]
        return logits


def _for_all(token_ids: list[int], processors: Iterable[LogitsProcessor]) -> list[LogitsProcessor]:
    """Processors that see all tokens. mlx-lm shows them only tokens that it got or made itself."""
    processors = list(processors)
    if not processors:
        return []
    seen = mx.array(token_ids[:-1], dtype=mx.uint32)

    def of_all(processor: LogitsProcessor) -> LogitsProcessor:
        def process(tokens: mx.array, logits: mx.array) -> mx.array:
            return processor(mx.concatenate([seen, tokens.astype(mx.uint32)]), logits)

        return process

    return [of_all(each) for each in processors]
