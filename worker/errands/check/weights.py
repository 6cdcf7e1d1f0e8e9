"""Figures of a model's weights, by which trained weights differ from random or foreign ones."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
import numpy as np

# The number of a layer in the name of a module.
_LAYER: Final = re.compile(r"\b(layers?|h|blocks)\.(\d+)\.")
# Rows of random numbers have nearly the same norm, and those of trained weights don't. The spread
# is 1 for normal numbers, and 0.63 for uniform ones.
_RANDOM: Final = (0.55, 1.3)
_LEAST_SIDE: Final = 64
# How many layers on each side a layer is compared with.
_NEAR: Final = 2
# Modules that write to the residual stream, whose rows are its dimensions.
_WRITERS: Final = re.compile(r"(?:o_proj|out_proj|down_proj|fc2|output\.dense|Wo)$")
_SMALLEST: Final = 1e-9


@dataclass(frozen=True)
class MatrixFigures:
    """`kind` is the name without the layer's number. `spread` says how unlike the norms of the rows
    and of the columns are; it is about 1 for random numbers. `profile` are the logarithms of the
    norms along the residual stream; empty: neither side has its width.
    """

    name: str
    kind: str
    layer: int | None
    rms: float
    spread: tuple[float, float]
    profile: np.ndarray[Any, Any]

    @property
    def is_random(self) -> bool:
        low, high = _RANDOM
        return all(low < side < high for side in self.spread)


def kind_of(name: str) -> tuple[str, int | None]:
    """A module's name without its layer's number, and that number."""
    match = _LAYER.search(name)
    if match is None:
        return name, None
    return name[: match.start(2)] + "*" + name[match.end(2) :], int(match[2])


def matrices(model: Any, width: int) -> Iterator[MatrixFigures]:
    """The figures of all matrices of a model, one at a time. `width` is that of its states."""
    for name, module in model.named_modules():
        weight = dense(module)
        if weight is not None and weight.ndim == 2 and min(weight.shape) >= _LEAST_SIDE:
            yield _figures(name, weight, width)


def dense(module: Any) -> mx.array | None:
    """The weights of a module, if need be from its quantized ones; None: it has no matrix."""
    if not isinstance(module, nn.Module) or "weight" not in module:
        return None
    weight: mx.array = module["weight"]
    if "scales" not in module:
        return weight
    if not isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
        return None
    return mx.dequantize(
        weight,
        module["scales"],
        module.get("biases"),
        group_size=module.group_size,
        bits=module.bits,
        mode=getattr(module, "mode", "affine"),
    )


def _figures(name: str, weight: mx.array, width: int) -> MatrixFigures:
    squares = mx.square(weight.astype(mx.float32))
    rows, columns = mx.sqrt(squares.mean(axis=1)), mx.sqrt(squares.mean(axis=0))
    mx.eval(rows, columns)
    by_row, by_column = np.array(rows), np.array(columns)
    along = np.array([])
    if weight.shape[0] == width and (_WRITERS.search(name) or weight.shape[1] != width):
        along = by_row
    elif weight.shape[1] == width:
        along = by_column
    kind, layer = kind_of(name)
    count, length = weight.shape
    return MatrixFigures(
        name,
        kind,
        layer,
        float(np.sqrt(np.mean(np.square(by_row)))),
        (_spread(by_row, length), _spread(by_column, count)),
        _standard(np.log(along + _SMALLEST)) if len(along) else along,
    )


def size(array: mx.array) -> float:
    """The root of the mean of the squares."""
    return float(np.array(mx.sqrt(mx.square(array.astype(mx.float32)).mean())))


def _spread(norms: np.ndarray[Any, Any], length: int) -> float:
    """The spread of norms of vectors of `length` numbers, in that of normal random numbers."""
    mean = float(norms.mean())
    return 0.0 if mean == 0 else float(norms.std()) / mean * math.sqrt(2 * length)


def _standard(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    spread = float(values.std())
    return (values - values.mean()) / spread if spread else values * 0


def alike(figures: list[MatrixFigures]) -> dict[int, list[float]]:
    """For each layer how much each of its matrices uses the residual stream as those of the layers
    beside it do: 1 is alike, 0 is unrelated.
    """
    by_kind: dict[str, dict[int, np.ndarray[Any, Any]]] = defaultdict(dict)
    for matrix in figures:
        if matrix.layer is not None and len(matrix.profile):
            by_kind[matrix.kind][matrix.layer] = matrix.profile
    likeness: dict[int, list[float]] = defaultdict(list)
    for profiles in by_kind.values():
        for layer, profile in profiles.items():
            near = [
                float(np.mean(profile * other))
                for beside in _beside(layer)
                if (other := profiles.get(beside)) is not None and other.shape == profile.shape
            ]
            if near:
                likeness[layer].append(fmean(near))
    return dict(sorted(likeness.items()))


def outliers(values: dict[int, float]) -> dict[int, float]:
    """For each layer, except the first two and the last, the factor by which its value differs from
    the layers beside it.
    """
    last = max(values, default=0)
    factors = {}
    for layer, value in values.items():
        near = [values[beside] for beside in _beside(layer) if values.get(beside)]
        if near and value > 0 and _NEAR <= layer < last:
            factors[layer] = value / median(near)
    return factors


def _beside(layer: int) -> Iterator[int]:
    for distance in range(1, _NEAR + 1):
        yield layer - distance
        yield layer + distance
