"""Hidden states of many tokens to one vector of each text, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from worker.vectors.recipe import Pooling

_LEAST = 1e-9


class Pool:
    """Of one batch, padded on the right. Sums are in single precision."""

    def __init__(
        self, poolings: Sequence[Pooling], lengths: Sequence[int], skipped: Sequence[int]
    ) -> None:
        """Of each text: how many tokens it has, and how many of the first aren't pooled."""
        self._poolings = poolings
        self._ends = mx.array(list(lengths))[:, None]
        self._begins = mx.array(list(skipped))[:, None]
        self._at = 0
        self._state: dict[Pooling, mx.array] = {}

    def take(self, hidden: mx.array) -> None:
        """The next tokens' states, of shape (texts, tokens, width)."""
        places = mx.arange(self._at, self._at + hidden.shape[1])[None, :]
        hidden = hidden.astype(mx.float32)
        for each in dict.fromkeys(self._poolings):
            new = self._part(each, hidden, places)
            old = self._state.get(each)
            if old is None:
                self._state[each] = new
            else:
                self._state[each] = mx.maximum(old, new) if each == "max" else old + new
        self._at += hidden.shape[1]
        mx.eval(list(self._state.values()))

    def result(self) -> mx.array:
        """Of shape (texts, width x poolings)."""
        counts = mx.maximum(self._ends - self._begins, 1)
        joined = []
        for each in self._poolings:
            value = self._state[each]
            match each:
                case "mean":
                    value = value / counts
                case "mean_sqrt_len_tokens":
                    value = value / mx.sqrt(counts)
                case "weightedmean":
                    # Of the places from the first pooled one to the last, counted from 1.
                    sums = (self._ends * (self._ends + 1) - self._begins * (self._begins + 1)) / 2
                    value = value / mx.maximum(sums, _LEAST)
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
        # What is padded may be no number.
        known = mx.where(weights[..., None] > 0, hidden, 0)
        return (weights[:, None, :] @ known)[:, 0]
