"""What MLX computes on here, without asking MLX."""

from __future__ import annotations

import functools
import sys
from enum import StrEnum
from importlib.metadata import distributions
from typing import Final

# MLX's CUDA back end is a distribution of its own: mlx-cuda-12, mlx-cuda-13.
_CUDA: Final = "mlx-cuda"


class BackEnd(StrEnum):
    METAL = "metal"
    CUDA = "cuda"
    CPU = "cpu"


@functools.cache
def back_end() -> BackEnd:
    """Of this environment, which models with an interpreter of their own are taken to share."""
    if sys.platform == "darwin":
        return BackEnd.METAL
    names = (each.metadata["Name"] or "" for each in distributions())
    return BackEnd.CUDA if any(each.startswith(_CUDA) for each in names) else BackEnd.CPU
