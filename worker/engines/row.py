"""A sequence that runs in an engine: its generated tokens, and its blocks in the prompt cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import mlx.core as mx

from worker.engines.sequence import Sequence, Token
from worker.mlx_lm.decoding_row import RowToken
from worker.mlx_lm.generator import stream
from worker.prompt_cache.path import BLOCK_TOKENS
from worker.sampling.scores import Score, score_prompt


@dataclass(eq=False)
class SequenceRow:
    """A sequence in the batch, and the tokens that were generated there. Rows are numbered in the
    order in which they begin.
    """

    sequence: Sequence
    number: int = 0
    generated: list[int] = field(default_factory=list)
    # How many tokens of the row came from the prompt cache, and how many its caches have seen.
    cached_tokens: int = 0
    seen_tokens: int = 0
    # How many blocks of the row the prompt cache has. None: it stores no blocks of this row.
    cached_blocks: int | None = None
    # The scores of the prompt's tokens so far; None: no scores are wanted.
    prompt_scores: list[Score] | None = None
    # Whether the prompt cache knows that a valid step has looked at the prompt's blocks.
    noted_valid: bool = False

    @classmethod
    def of(cls, sequence: Sequence, done: int, number: int = 0) -> SequenceRow:
        """The row of a sequence whose first `done` tokens come from the prompt cache."""
        return cls(
            sequence,
            number,
            cached_tokens=done,
            seen_tokens=done,
            cached_blocks=None if sequence.path is None else done // BLOCK_TOKENS,
            prompt_scores=None if sequence.prompt_logprobs is None else [],
        )

    @property
    def tokens(self) -> int:
        return len(self.sequence.token_ids) + len(self.generated)

    @property
    def uncached_tokens(self) -> int:
        """The tokens that the row's caches have seen and the prompt cache doesn't have."""
        return (
            0
            if self.cached_blocks is None
            else self.seen_tokens - self.cached_blocks * BLOCK_TOKENS
        )

    @property
    def most_tokens(self) -> int:
        """The length at which the row ends, prompt and answer together."""
        return len(self.sequence.token_ids) + self.sequence.max_tokens

    @property
    def next_boundary(self) -> int | None:
        """The next place of the prompt at which a snapshot is to be made; None: there is none."""
        path = self.sequence.path
        places = () if path is None else (boundary * BLOCK_TOKENS for boundary in path.boundaries)
        return next((place for place in places if place > self.seen_tokens), None)

    def forget_cached(self) -> None:
        """Begin without the blocks of the prompt cache, and store none there."""
        self.seen_tokens = self.cached_tokens = 0
        self.cached_blocks = None

    def compute_prompt(
        self, compute: Callable[[mx.array, list[Any]], mx.array], caches: list[Any], length: int
    ) -> int:
        """Compute the next `length` tokens of the prompt, with caches of this row alone. Returns
        the size of the vocabulary. `compute` makes logits, (1, tokens, vocabulary), of tokens.
        """
        begin, end = self.seen_tokens, self.seen_tokens + length
        with stream():
            logits = compute(mx.array([self.sequence.token_ids[begin:end]]), caches)
            vocabulary = logits.shape[-1]
            mx.eval([cache.state for cache in caches])
            self.score_prompt(logits[0], end)
            # MLX doesn't compute logits that are never read.
            del logits
            mx.clear_cache()
        self.seen_tokens = end
        return vocabulary

    def score_prompt(self, logits: mx.array, end: int) -> None:
        """Score the prompt's tokens from `seen_tokens` up to `end`, if scores are wanted."""
        if self.prompt_scores is not None:
            alternatives = self.sequence.prompt_logprobs or 0
            self.prompt_scores += score_prompt(
                logits, self.sequence.token_ids, self.seen_tokens, end, alternatives
            )

    def record_token(self, row_token: RowToken, score: Score | None) -> Token:
        """Add a token to the answer. The first token carries the scores of the prompt."""
        self.generated.append(row_token.token)
        scores, self.prompt_scores = self.prompt_scores, None
        return Token(
            self.sequence.request_id,
            row_token.token,
            row_token.finish_reason,
            self.cached_tokens,
            score,
            scores,
            first=len(self.generated) == 1,
            guessed=row_token.guessed,
            rejected=row_token.rejected,
        )


class CachedRow(NamedTuple):
    """A row and its caches, which are of this row alone or of several rows. `place` is the index
    of the row in them. `prefills`: the row's prompt is being computed.
    """

    row: SequenceRow
    caches: list[Any]
    place: int
    prefills: bool = False
