"""What a model asks for at its load, and the context that it gets."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from gateway.memory.estimate.estimate import Estimate, estimate, model_key
from gateway.memory.estimate.learned import Learned
from gateway.memory.estimate.options import Options
from gateway.memory.estimate.weights import adapter_bytes, read_weights
from gateway.system.memory import back_end

# Weights and what comes beside them, where the rest can't be estimated.
_GUESS: Final = 1.3
# A model whose whole context doesn't fit is loaded if so much of it does.
LEAST_CONTEXT_TOKENS: Final = 2048


def whole(
    folder: Path,
    context_tokens: int,
    ordinary_tokens: int,
    python: str | None,
    learned: Learned,
    options: Options,
) -> tuple[str, Estimate]:
    """The estimate with the whole context, and the key that its measurements are kept by.

    Raises:
        EstimateError, OSError: the files can't be understood, or read.
    """
    key = model_key(folder, python, options)
    return key, estimate(
        folder,
        context_tokens,
        ordinary_tokens,
        learned.process_bytes,
        learned.fixed_bytes(key),
        back_end(),
        options,
    )


def shortened(estimated: Estimate, most_bytes: int) -> Estimate:
    """With as much of the context as one sequence can get, and the least that is worth a load."""
    least = min(LEAST_CONTEXT_TOKENS, estimated.context_tokens)
    tokens = max(least, estimated.longest_tokens(most_bytes))
    return msgspec.structs.replace(
        estimated,
        context_tokens=tokens,
        ordinary_tokens=min(estimated.ordinary_tokens, tokens),
    )


class Fit(Struct, frozen=True):
    """Bytes that a model asks for at its load, the context that it gets of the `wanted` one, and
    what can be had.
    """

    needed_bytes: int
    context_tokens: int
    wanted_tokens: int
    possible_bytes: int

    @property
    def fits(self) -> bool:
        """With this context, which may be a shorter one."""
        return self.needed_bytes <= self.possible_bytes

    @property
    def is_cut(self) -> bool:
        """The whole context doesn't fit."""
        return self.context_tokens < self.wanted_tokens


def fit(whole: Estimate, possible_bytes: int) -> Fit:
    """What a load would ask for, of `possible_bytes`, and the context that it would get."""
    found = shortened(whole, possible_bytes)
    return Fit(found.floor_bytes, found.context_tokens, whole.context_tokens, possible_bytes)


def guess(folder: Path, process_bytes: int, options: Options) -> int:
    """What is asked for where only the weights are understood: bytes. `process_bytes` is a worker
    without them.

    Raises:
        EstimateError, OSError: not even these are.
    """
    weight_bytes = read_weights(folder).bytes
    if options.adapter is not None:
        weight_bytes += adapter_bytes(options.adapter)
    if options.draft is not None:
        weight_bytes += read_weights(options.draft).bytes
    return process_bytes + int(weight_bytes * _GUESS)
