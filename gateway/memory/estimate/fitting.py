"""The context that a model's memory allows, and what it is granted for it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gateway.memory.estimate.estimate import PROCESS_BYTES, Estimate, estimate, model_key
from gateway.memory.estimate.learned import Learned
from gateway.memory.estimate.weights import read_weights

# What a worker may be granted beyond its estimate: the estimate is within this of the truth.
_MARGIN: Final = 1.15
# Weights and what comes beside them, where the rest can't be estimated.
_GUESS: Final = 1.3
# A model whose whole context doesn't fit is loaded if so much of it does.
_LEAST_CONTEXT_TOKENS: Final = 2048


def fitting(
    folder: Path, context_tokens: int, python: str | None, learned: Learned, most_bytes: int
) -> tuple[str, Estimate]:
    """The estimate with the whole context if that can be had at all, else with what can be; and
    the key that its measurements are kept by.

    Raises:
        EstimateError, OSError: the files can't be understood, or read.
    """
    tokens = context_tokens
    while True:
        key = model_key(folder, tokens, python)
        result = estimate(folder, tokens, learned.get(key))
        if with_margin(result) <= most_bytes or result.context_tokens <= _LEAST_CONTEXT_TOKENS:
            return key, result
        tokens = max(_LEAST_CONTEXT_TOKENS, result.context_tokens // 2)


def with_margin(estimated: Estimate) -> int:
    """What is asked for: bytes."""
    return int(estimated.full_bytes * _MARGIN)


def guess(folder: Path) -> int:
    """What is asked for where only the weights are understood: bytes.

    Raises:
        EstimateError, OSError: not even these are.
    """
    return PROCESS_BYTES + int(read_weights(folder).bytes * _GUESS)
