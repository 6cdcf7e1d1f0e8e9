"""Pooling in chunks is pooling at once, and what sentence-transformers' words mean."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from worker.vectors.pooling import Pool, Pooling

LENGTHS = [7, 3, 12, 1]
SKIPPED = [2, 0, 5, 0]


def _reference(pooling: Pooling, states: np.ndarray, skipped: int) -> np.ndarray:
    """Of one text without padding."""
    pooled = states[skipped:]
    match pooling:
        case "cls":
            return pooled[0]
        case "lasttoken":
            return pooled[-1]
        case "max":
            return pooled.max(axis=0)
        case "mean":
            return pooled.mean(axis=0)
        case "mean_sqrt_len_tokens":
            return pooled.sum(axis=0) / np.sqrt(len(pooled))
        case "weightedmean":
            weights = np.arange(skipped + 1, len(states) + 1)[:, None]
            return (pooled * weights).sum(axis=0) / weights.sum()


@pytest.mark.parametrize("chunk", [1, 4, 12])
@pytest.mark.parametrize(
    "pooling", ["cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean"]
)
def test_pooling(pooling: Pooling, chunk: int) -> None:
    states = np.random.default_rng(7).normal(size=(4, 12, 8)).astype(np.float32)
    for row, length in zip(states, LENGTHS, strict=True):
        # What padding becomes in half precision.
        row[length:] = np.nan
    pool = Pool((pooling, "mean"), LENGTHS, SKIPPED)
    for begin in range(0, 12, chunk):
        pool.add(mx.array(states[:, begin : begin + chunk]))
    result = np.array(pool.result())
    for index, (length, skipped) in enumerate(zip(LENGTHS, SKIPPED, strict=True)):
        text = states[index, :length]
        expected = [_reference(item, text, skipped) for item in (pooling, "mean")]
        np.testing.assert_allclose(result[index], np.concatenate(expected), rtol=1e-5, atol=1e-6)
