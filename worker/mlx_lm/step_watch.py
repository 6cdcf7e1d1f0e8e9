"""The watch over each step: whether the logits of a row are numbers that a token may be drawn from.

Faulty weights or caches make numbers that aren't finite, or logits that are all the same. Tokens
are drawn from such logits, too, and would go to the client as an answer. The check is a part of the
step's own graph, and its result is read together with the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx


class WatchedLogits(NamedTuple):
    """Log probabilities, (rows, vocabulary), and the `levels` of the logits, (rows, 1): a level is
    a finite number only if the logits of its row are valid.
    """

    logprobs: mx.array
    levels: mx.array


class DrawnTokens(NamedTuple):
    """The tokens of a step that nobody has read yet, (rows,), and the levels of their logits,
    (rows, 1).
    """

    tokens: mx.array
    levels: mx.array

    def order(self, rows: Sequence[int]) -> DrawnTokens:
        """The tokens of these rows, in their order."""
        places = mx.array(list(rows))
        return DrawnTokens(self.tokens[places], self.levels[places])

    def join(self, other: DrawnTokens) -> DrawnTokens:
        return DrawnTokens(
            mx.concatenate([self.tokens, other.tokens]), mx.concatenate([self.levels, other.levels])
        )


def watch(logits: mx.array) -> WatchedLogits:
    """Log probabilities and levels of logits, (rows, vocabulary). A logit that isn't a number, or
    is plus infinity, makes the sum of its row the same. Minus infinity forbids a token, and is
    valid.
    """
    sums = mx.logsumexp(logits, axis=-1, keepdims=True)
    differ = mx.any(logits != logits[:, :1], axis=-1, keepdims=True)
    return WatchedLogits(logits - sums, mx.where(differ, sums, mx.nan))


def are_valid(levels: mx.array) -> list[bool]:
    """Waits for the levels. Returns whether the logits of each row are valid."""
    values: list[list[float]] = levels.tolist()  # type: ignore[assignment]  # MLX's own stubs
    return [math.isfinite(level) for (level,) in values]
