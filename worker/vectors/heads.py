"""The heads, which turn pooled states into a vector or a score."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import mlx.core as mx
import mlx.nn as nn

from worker.mlx_lm.models import logits_of
from worker.vectors.pooling import Pooling
from worker.vectors.recipe import Recipe, RecipeError

_ACTIVATIONS: Final = {
    "Identity": lambda x: x,
    "Tanh": mx.tanh,
    "ReLU": nn.relu,
    "GELU": nn.gelu,
    "Sigmoid": mx.sigmoid,
    "SiLU": nn.silu,
}
# The least norm that a vector is divided by. A shorter vector has no direction.
SHORTEST: Final = 1e-12


class PoolHead(Protocol):
    """Turns a text's hidden states, pooled by `poolings`, into a vector or a score. `normalized`:
    vectors are to be divided by their norm. Without `poolings` it gets the states of all tokens.
    """

    poolings: tuple[Pooling, ...]
    normalized: bool

    def __call__(self, pooled: mx.array) -> mx.array:
        """From shape (texts, width) to (texts, numbers), in single precision."""


class VectorHead:
    """Makes vectors, with the layers after the pooling if the recipe has any."""

    def __init__(self, recipe: Recipe) -> None:
        """
        Raises:
            RecipeError: a layer can't be read.
        """
        self.poolings: tuple[Pooling, ...] = recipe.poolings
        self.normalized = recipe.normalized
        self._layers = [_read_layer(path) for path in recipe.dense]

    def __call__(self, pooled: mx.array) -> mx.array:
        for weight, bias, activation in self._layers:
            pooled = activation(pooled @ weight.T + bias)
        return pooled


class TokenHead:
    """Makes a vector of length 1 of each token, from shape (texts, tokens, width)."""

    poolings: tuple[Pooling, ...] = ()
    normalized = False

    def __init__(self, recipe: Recipe) -> None:
        """
        Raises:
            RecipeError: a layer can't be read.
        """
        self._vectors = VectorHead(recipe)

    def __call__(self, pooled: mx.array) -> mx.array:
        vectors = self._vectors(pooled)
        lengths = mx.linalg.norm(vectors, axis=-1, keepdims=True)
        return vectors / mx.maximum(lengths, SHORTEST)


class ClassHead:
    """Makes the scores of an encoder with one label (sentence-transformers' CrossEncoder)."""

    poolings: tuple[Pooling, ...]
    normalized = False

    def __init__(self, model: Any, config: Mapping[str, Any]) -> None:
        self.poolings = (getattr(model, "scored_pooling", "cls"),)
        self._model = model
        settings = config.get("sentence_transformers") or {}
        name = settings.get("activation_fn") or config.get("sbert_ce_default_activation_function")
        # By default sentence-transformers and vLLM turn the logit of one label into a probability.
        self._activation = _activation(name or "Sigmoid")

    def __call__(self, pooled: mx.array) -> mx.array:
        logits = self._model.logits(pooled.astype(self._model.dtype))
        scores: mx.array = self._activation(logits.astype(mx.float32))
        return scores


class YesHead:
    """Makes the scores of a decoder: the probability that the next token is "yes", and not "no"."""

    poolings: tuple[Pooling, ...] = ("lasttoken",)
    normalized = False

    def __init__(self, model: Any, yes: int, no: int) -> None:
        self._model = model
        self._ids = mx.array([yes, no])

    def __call__(self, pooled: mx.array) -> mx.array:
        logits = logits_of(self._model, pooled)
        return mx.softmax(logits[:, self._ids].astype(mx.float32), axis=-1)[:, :1]


def _activation(name: str) -> Any:
    activation = _ACTIVATIONS.get(name.rpartition(".")[2])
    if activation is None:
        raise RecipeError(f"The activation {name} isn't supported.")
    return activation


def _read_layer(folder: Path) -> tuple[mx.array, mx.array, Any]:
    try:
        settings = json.loads((folder / "config.json").read_text("utf-8"))
        weights: Any = mx.load(str(folder / "model.safetensors"))
        # Otherwise the GPU would wait for the disk when it first uses the weights (mlx#3803).
        mx.eval(weights)
    except (OSError, ValueError, RuntimeError) as error:
        raise RecipeError(f"The layer in {folder} can't be read: {error}") from error
    if settings.get("use_residual"):
        raise RecipeError(
            f"The layer in {folder} adds its input to its output, which isn't supported."
        )
    if "linear.weight" not in weights:
        raise RecipeError(f"The layer in {folder} has no linear.weight.")
    weight = weights["linear.weight"].astype(mx.float32)
    bias = weights.get("linear.bias", mx.zeros(weight.shape[0])).astype(mx.float32)
    return weight, bias, _activation(str(settings.get("activation_function", "Tanh")))
