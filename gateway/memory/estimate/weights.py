"""Bytes of weights, from the headers of safetensors files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

_LENGTH_BYTES: Final = 8
_LONGEST_HEADER_BYTES: Final = 100_000_000
_ELEMENT_BYTES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


class EstimateError(Exception):
    """Why nothing can be said of a model, in one sentence."""


class Weights(Struct, frozen=True):
    """`element_bytes` is that of the floating-point type that most tensors have: activations and
    caches have it too, as quantized layers compute in the type of their scales.
    """

    bytes: int
    element_bytes: int


def read_weights(folder: Path) -> Weights:
    """Sum up the shards that mlx-lm loads (model*.safetensors).

    Raises:
        EstimateError: there are none, or one can't be read.
    """
    total = 0
    types: Counter[str] = Counter()
    for path in sorted(folder.glob("model*.safetensors")):
        for tensor in _header(path).values():
            total += _size(path, tensor)
            types[tensor["dtype"]] += 1
    if not types:
        raise EstimateError(f"{folder} has no weights (model*.safetensors)")
    floats = [(count, name) for name, count in types.items() if name in _ELEMENT_BYTES]
    return Weights(total, _ELEMENT_BYTES[max(floats)[1]] if floats else 2)


def _header(path: Path) -> dict[str, Any]:
    """The JSON header behind its length (github.com/huggingface/safetensors, "Format")."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if length > _LONGEST_HEADER_BYTES:
                raise EstimateError(f"{path} is damaged: its header would have {length} bytes")
            header = json.loads(file.read(length))
    except (OSError, ValueError) as error:
        raise EstimateError(f"{path} can't be read: {error}") from error
    if not isinstance(header, dict):
        raise EstimateError(f"{path} is damaged: its header is no table of tensors")
    header.pop("__metadata__", None)
    return header


def _size(path: Path, tensor: Any) -> int:
    try:
        begin, end = tensor["data_offsets"]
        size: int = end - begin
    except (KeyError, TypeError, ValueError) as error:
        raise EstimateError(f"{path} is damaged: a tensor has no place") from error
    return size
