"""The sum: process, weights, cache and working space, corrected by what was measured before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from gateway.memory.estimate.cache import cache_shape
from gateway.memory.estimate.learned import Measured
from gateway.memory.estimate.weights import EstimateError, read_weights
from gateway.memory.estimate.working import working_bytes

# A worker with its imports done and no model, with MLX's CPU back end on Linux.
PROCESS_BYTES: Final = 53_000_000


class Line(Struct, frozen=True):
    """One part of the sum."""

    name: str
    bytes: int
    detail: str


class Estimate(Struct, frozen=True):
    """Bytes of a worker after its load, and with one sequence that fills the context.

    `measured` is what this model took before, if it has run; it goes before the calculated figures.
    """

    lines: tuple[Line, ...]
    context_tokens: int
    token_bytes: int
    cache_bytes: int
    calculated_idle_bytes: int
    calculated_full_bytes: int
    measured: Measured | None

    @property
    def idle_bytes(self) -> int:
        return self.measured.idle_bytes if self.measured else self.calculated_idle_bytes

    @property
    def full_bytes(self) -> int:
        if self.measured is None:
            return self.calculated_full_bytes
        if self.measured.full_bytes is not None:
            return self.measured.full_bytes
        more = self.calculated_full_bytes - self.calculated_idle_bytes
        return self.measured.idle_bytes + more

    @property
    def working_bytes(self) -> int:
        """What activations may take beside the cache of that sequence."""
        return max(0, self.full_bytes - self.idle_bytes - self.cache_bytes)


def estimate(
    folder: Path, context_tokens: int, measured: Measured | None, process_bytes: int = PROCESS_BYTES
) -> Estimate:
    """Read a model's files; blocks for some milliseconds.

    `context_tokens` is the configured limit; the model's own may be lower.

    Raises:
        EstimateError: the files can't be understood.
    """
    weights = read_weights(folder)
    config = _config(folder)
    text = {**config, **(config.get("text_config") or {})}
    own_context = text.get("max_position_embeddings")
    if isinstance(own_context, int) and own_context > 0:
        context_tokens = min(context_tokens, own_context)
    try:
        shape = cache_shape(config, weights.element_bytes)
    except (TypeError, ValueError) as error:
        raise EstimateError(f"{folder / 'config.json'} can't be understood: {error}") from error
    cache_bytes = shape.sequence_bytes(context_tokens)
    computing_bytes = working_bytes(text, weights.element_bytes, context_tokens)
    lines = (
        Line("process", process_bytes, "interpreter, MLX, mlx-lm"),
        Line("weights", weights.bytes, "all model*.safetensors"),
        Line("cache", cache_bytes, f"one sequence of {context_tokens:,} tokens"),
        Line("working space", computing_bytes, "a chunk of a long prompt, freed buffers"),
    )
    idle_bytes = process_bytes + weights.bytes
    return Estimate(
        lines=lines,
        context_tokens=context_tokens,
        token_bytes=shape.full_token_bytes,
        cache_bytes=cache_bytes,
        calculated_idle_bytes=idle_bytes,
        calculated_full_bytes=idle_bytes + cache_bytes + computing_bytes,
        measured=measured,
    )


def model_key(folder: Path, context_tokens: int, python: str | None) -> str:
    """What measurements are remembered by: these files with this limit and interpreter.

    Raises:
        OSError: the folder can't be read.
    """
    newest = max((each.stat().st_mtime_ns for each in folder.iterdir()), default=0)
    return f"{folder.resolve()}|{newest}|{context_tokens}|{python or ''}"


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EstimateError(f"{path} can't be read: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("text_config") or {}, dict):
        raise EstimateError(f"{path} is no configuration of a model")
    return config
