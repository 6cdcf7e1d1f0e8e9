"""Bytes of weights, from the headers of safetensors files."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

from msgspec import Struct

from protocol.model_files import Tensor, read_header

# As mlx-lm tells them when it splits a model by layers.
_LAYER: Final = re.compile(r"(?:^|\.)layers\.\d+\.")
_ELEMENT_BYTES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


class EstimateError(Exception):
    """Why nothing can be said of a model, in one sentence."""


class Weights(Struct, frozen=True):
    """`element_bytes` is that of the floating-point type that most tensors have: activations and
    caches have it too, as quantized layers compute in the type of their scales. `layer_bytes` are
    in the layers, and not in embeddings or heads.
    """

    bytes: int
    element_bytes: int
    layer_bytes: int = 0


def read_weights(folder: Path) -> Weights:
    """Sum up the shards that mlx-lm loads (model*.safetensors).

    Raises:
        EstimateError: there are none, or one can't be read.
    """
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        # mlx-lm too keeps one of tensors with the same name, as when shards lie beside their whole.
        tensors |= _tensors(path)
    if not tensors:
        raise EstimateError(f"{folder} has no weights (model*.safetensors)")
    floats = Counter(each.dtype for each in tensors.values() if each.dtype in _ELEMENT_BYTES)
    element_bytes = _ELEMENT_BYTES[floats.most_common(1)[0][0]] if floats else 2
    layer_bytes = sum(each.bytes for name, each in tensors.items() if _LAYER.search(name))
    return Weights(sum(each.bytes for each in tensors.values()), element_bytes, layer_bytes)


def adapter_bytes(folder: Path) -> int:
    """What a LoRA adapter adds. One of full weights takes the place of the model's, but both are
    there while it is loaded.

    Raises:
        EstimateError: it can't be read.
    """
    return sum(each.bytes for each in _tensors(folder / "adapters.safetensors").values())


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return read_header(path).tensors
    except (OSError, ValueError) as error:
        raise EstimateError(f"{path} can't be read: {error}") from error
