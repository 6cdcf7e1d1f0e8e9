"""What becomes of pooled states: a vector, or a score."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import mlx.core as mx
import mlx.nn as nn

from worker.mlx_lm.models import logits_of
from worker.vectors.recipe import Pooling, Recipe, RecipeError

_ACTIVATIONS: Final = {
    "Identity": lambda x: x,
    "Tanh": mx.tanh,
    "ReLU": nn.relu,
    "GELU": nn.gelu,
    "Sigmoid": mx.sigmoid,
    "SiLU": nn.silu,
}


class Head(Protocol):
    """`poolings` are what it wants to see; `normalized` are the numbers that it gives."""

    poolings: tuple[Pooling, ...]
    normalized: bool

    def __call__(self, pooled: mx.array) -> mx.array:
        """From shape (texts, width) to (texts, numbers), in single precision."""


class VectorHead:
    """The layers behind the pooling, if there are any."""

    def __init__(self, recipe: Recipe) -> None:
        """Raises: RecipeError: they can't be read."""
        self.poolings: tuple[Pooling, ...] = recipe.poolings
        self.normalized = recipe.normalized
        self._layers = [_read_layer(each) for each in recipe.dense]

    def __call__(self, pooled: mx.array) -> mx.array:
        for weight, bias, activation in self._layers:
            pooled = activation(pooled @ weight.T + bias)
        return pooled


class ClassHead:
    """Of a model with one label (sentence-transformers' CrossEncoder)."""

    poolings: tuple[Pooling, ...]
    normalized = False

    def __init__(self, model: Any, config: Mapping[str, Any]) -> None:
        self.poolings = (getattr(model, "scored_pooling", "cls"),)
        self._model = model
        own = config.get("sentence_transformers") or {}
        name = own.get("activation_fn") or config.get("sbert_ce_default_activation_function")
        # Without a word, sentence-transformers and vLLM make a probability of one label.
        self._activation = _activation(name or "Sigmoid")

    def __call__(self, pooled: mx.array) -> mx.array:
        logits = self._model.logits(pooled.astype(self._model.dtype))
        scores: mx.array = self._activation(logits.astype(mx.float32))
        return scores


class YesHead:
    """The probability that a decoder says yes and not no."""

    poolings: tuple[Pooling, ...] = ("lasttoken",)
    normalized = False

    def __init__(self, model: Any, yes: int, no: int) -> None:
        self._model = model
        self._ids = mx.array([yes, no])

    def __call__(self, pooled: mx.array) -> mx.array:
        logits = logits_of(self._model, pooled)
        return mx.softmax(logits[:, self._ids].astype(mx.float32), axis=-1)[:, :1]


def _activation(name: str) -> Any:
    found = _ACTIVATIONS.get(name.rpartition(".")[2])
    if found is None:
        raise RecipeError(f"The activation {name} isn't done here.")
    return found


def _read_layer(folder: Path) -> tuple[mx.array, mx.array, Any]:
    try:
        settings = json.loads((folder / "config.json").read_text("utf-8"))
        weights: Any = mx.load(str(folder / "model.safetensors"))
        # A GPU that computes on them would wait for the disk (mlx#3803).
        mx.eval(weights)
    except (OSError, ValueError, RuntimeError) as error:
        raise RecipeError(f"The layer in {folder} can't be read: {error}") from error
    weight = weights["linear.weight"].astype(mx.float32)
    bias = weights.get("linear.bias", mx.zeros(weight.shape[0])).astype(mx.float32)
    return weight, bias, _activation(str(settings.get("activation_function", "Tanh")))
