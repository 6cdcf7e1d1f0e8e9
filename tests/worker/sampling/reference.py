"""The same settings by mlx-lm's own filters, one row at a time."""

from __future__ import annotations

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from worker.sampling.settings import RowSampling


def filtered(logprobs: mx.array, sampling: RowSampling) -> mx.array:
    """Minus infinity for what may not be chosen; `logprobs` has shape (vocabulary,)."""
    allowed = logprobs.astype(mx.float32)[None]
    if sampling.top_p < 1.0:
        allowed = apply_top_p(allowed, sampling.top_p)
    if sampling.min_p > 0.0:
        allowed = apply_min_p(allowed, sampling.min_p)
    if sampling.top_k:
        allowed = apply_top_k(allowed, sampling.top_k)
    return allowed[0]


def distribution(logprobs: mx.array, sampling: RowSampling) -> list[float]:
    """What each token's probability should be."""
    masses = mx.softmax(filtered(logprobs, sampling) / sampling.temperature)
    probabilities: list[float] = masses.tolist()  # type: ignore[assignment]
    return probabilities
