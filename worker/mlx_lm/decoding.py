"""mlx-lm's loops over one sequence: alone, or with a draft model that guesses ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import mlx.core as mx
from mlx_lm.generate import generate_step, generation_stream, speculative_generate_step

from worker.mlx_lm.generator import Sampler
from worker.mlx_lm.rows import LogitsProcessor

# Chooses a token, shape (1,), from log probabilities, shape (1, vocabulary). The number is the
# position of the token in the answer, from 0 on.
Draw: TypeAlias = Callable[[int, mx.array], mx.array]
# With a draft model, the caches of both models lack the last token, and those of the draft model
# may lack the token before it.
UNSEEN_TOKENS: Final = 2


class CachedModel(NamedTuple):
    """A model, and its caches for one sequence."""

    model: Any
    caches: list[Any]


class Guessed(NamedTuple):
    """A token of the answer, and the logits for its position by the model that checks guesses,
    shape (1, vocabulary).
    """

    token_id: int
    logits: mx.array


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


def decode_ahead(
    token_ids: list[int],
    checking: CachedModel,
    guessing: CachedModel,
    draft_tokens: int,
    max_tokens: int,
    draw: Draw | None,
    processors: Iterable[LogitsProcessor],
) -> Iterator[Guessed]:
    """Decode the same tokens as `decode`. The model `guessing` guesses `draft_tokens` tokens, and
    the model `checking` checks these together. Without `draw` the likeliest tokens are chosen. When
    a token is given out, the caches may not have seen the last `UNSEEN_TOKENS` tokens. Further
    content of the caches is not valid.
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
    """The one sampler that mlx-lm calls for both models. Each call is for some positions of the
    answer, and the sampler finds out for which.

    In each round the draft model guesses some tokens, one in each call. Then the model samples the
    same positions and the next one, in one call, or one by one if there are processors. Both models
    use the same random number for a position. So a guess is right if the two models agree, and the
    accepted tokens are those that the model would have made alone.
    """

    def __init__(self, draw: Draw, max_tokens: int, draft_tokens: int) -> None:
        self.given = 0
        self._draw = draw
        self._max_tokens = max_tokens
        self._draft_tokens = draft_tokens
        self._round = -1
        self._done = 0

    def __call__(self, logprobs: mx.array) -> mx.array:
        """Sample token ids, shape (tokens,), from log probabilities, shape (tokens, vocabulary)."""
        if self._round != self.given:
            self._round, self._done = self.given, 0
        guesses = min(self._max_tokens - self.given, self._draft_tokens)
        first = self.given + self._done - (guesses if self._done >= guesses else 0)
        rows = logprobs.shape[0]
        self._done += rows
        drawn = [self._draw(first + row, logprobs[row : row + 1]) for row in range(rows)]
        return mx.concatenate(drawn)


class _Layered:
    """A model whose `layers` are its caches. mlx-lm counts the layers to find this model's caches
    in the list, and some models have fewer caches than layers. Also keeps the logits.
    """

    def __init__(self, of: CachedModel) -> None:
        self._model, self.layers = of
        self._given = 0

    def __call__(self, tokens: mx.array, cache: list[Any]) -> Any:
        self._logits = self._model(tokens, cache=cache)
        self._given = 0
        return self._logits

    def next_logits(self) -> mx.array:
        """The logits for the next token that is given out. A call of the model gives the logits of
        a whole round.
        """
        place, self._given = self._given, self._given + 1
        logits: mx.array = self._logits[:, place]
        return logits


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
