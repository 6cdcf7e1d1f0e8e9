"""The pooling of a model's hidden states, or what keeps them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import mlx.core as mx

Pooling: TypeAlias = Literal[
    "cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"
]

# The least sum of weights that a sum is divided by, for texts without pooled tokens.
_LEAST_WEIGHT_SUM: Final = 1e-9


class Pool:
    """Pools the states of a batch of texts padded on the right. Sums are in single precision."""

    def __init__(
        self, poolings: Sequence[Pooling], lengths: Sequence[int], skipped: Sequence[int]
    ) -> None:
        """`lengths` are in tokens; the first `skipped` tokens of a text aren't pooled."""
        self._poolings = poolings
        self._ends = mx.array(list(lengths))[:, None]
        self._begins = mx.array(list(skipped))[:, None]
        self._at = 0
        self._state: dict[Pooling, mx.array] = {}

    def add(self, hidden: mx.array) -> None:
        """Take in the states of the next tokens, (texts, tokens, width)."""
        places = mx.arange(self._at, self._at + hidden.shape[1])[None, :]
        hidden = hidden.astype(mx.float32)
        for pooling in dict.fromkeys(self._poolings):
            new = self._part(pooling, hidden, places)
            old = self._state.get(pooling)
            if old is None:
                self._state[pooling] = new
            else:
                self._state[pooling] = mx.maximum(old, new) if pooling == "max" else old + new
        self._at += hidden.shape[1]
        mx.eval(list(self._state.values()))

    def result(self) -> mx.array:
        """The pooled states, (texts, width x poolings)."""
        counts = mx.maximum(self._ends - self._begins, 1)
        joined = []
        for pooling in self._poolings:
            value = self._state[pooling]
            match pooling:
                case "mean":
                    value = value / counts
                case "mean_sqrt_len_tokens":
                    value = value / mx.sqrt(counts)
                case "weightedmean":
                    # The sum of the weights: the places of pooled tokens, counted from 1.
                    sums = (self._ends * (self._ends + 1) - self._begins * (self._begins + 1)) / 2
                    value = value / mx.maximum(sums, _LEAST_WEIGHT_SUM)
                case _:
                    pass
            joined.append(value)
        return mx.concatenate(joined, axis=-1)

    def _part(self, pooling: Pooling, hidden: mx.array, places: mx.array) -> mx.array:
        pooled = (places >= self._begins) & (places < self._ends)
        match pooling:
            case "cls":
                weights = (places == mx.minimum(self._begins, self._ends - 1)).astype(mx.float32)
            case "lasttoken":
                weights = (places == self._ends - 1).astype(mx.float32)
            case "max":
                return mx.where(pooled[..., None], hidden, -mx.inf).max(axis=1)
            case "weightedmean":
                weights = pooled * (places + 1).astype(mx.float32)
            case "mean" | "mean_sqrt_len_tokens":
                weights = pooled.astype(mx.float32)
        # States of padding may be NaN.
        known = mx.where(weights[..., None] > 0, hidden, 0)
        return (weights[:, None, :] @ known)[:, 0]


class AllStates:
    """Keeps the states of all tokens of a batch, in single precision."""

    def __init__(self) -> None:
        self._parts: list[mx.array] = []

    def add(self, hidden: mx.array) -> None:
        """Take in the states of the next tokens, (texts, tokens, width)."""
        self._parts.append(hidden.astype(mx.float32))
        mx.eval(self._parts[-1])

    def result(self) -> mx.array:
        """The states, (texts, tokens, width)."""
        return mx.concatenate(self._parts, axis=1)
