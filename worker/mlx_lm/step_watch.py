"""The watch over each step: whether the logits of a row are numbers that a token may be drawn from.

Faulty weights or caches make numbers that aren't finite, or logits that are all the same. Tokens
are drawn from such logits, too, and would go to the client as an answer. The check is one reduction
in the step's own graph: its result, the level of each row, is read together with the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import mlx.core as mx

# Rounding moves the level of logits that are all the same by less, in nats.
_ROUNDING: Final = {mx.float32: 1e-3}
_HALF_ROUNDING: Final = 0.2


class WatchedLogits(NamedTuple):
    """Log probabilities, (rows, vocabulary), and the level of each row, (rows,): the largest log
    probability. The level of valid logits is finite and above `flat_level`, that of logits which
    are all the same.
    """

    logprobs: mx.array
    levels: mx.array
    flat_level: float


class DrawnTokens(NamedTuple):
    """The tokens of a step that nobody has read yet, (rows,), and the levels of their logits,
    (rows,), with the level of logits that are all the same.
    """

    tokens: mx.array
    levels: mx.array
    flat_level: float

    def order(self, rows: Sequence[int]) -> DrawnTokens:
        """The tokens of these rows, in their order."""
        places = mx.array(list(rows))
        return DrawnTokens(self.tokens[places], self.levels[places], self.flat_level)

    def join(self, other: DrawnTokens) -> DrawnTokens:
        """The tokens of both, which one model has drawn."""
        return DrawnTokens(
            mx.concatenate([self.tokens, other.tokens]),
            mx.concatenate([self.levels, other.levels]),
            max(self.flat_level, other.flat_level),
        )


def watch(logits: mx.array) -> WatchedLogits:
    """Log probabilities and levels of logits, (rows, vocabulary). A logit that isn't a number, or
    is plus infinity, spoils the level of its row. Minus infinity forbids a token, and is valid.
    """
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    flat_level = _ROUNDING.get(logits.dtype, _HALF_ROUNDING) - math.log(logits.shape[-1])
    return WatchedLogits(logprobs, logprobs.max(axis=-1), flat_level)


def are_valid(levels: mx.array, flat_level: float) -> list[bool]:
    """Waits for the levels. Returns whether the logits of each row are valid."""
    values: list[float] = levels.tolist()  # type: ignore[assignment]  # MLX's own stubs
    return [math.isfinite(level) and level > flat_level for level in values]
