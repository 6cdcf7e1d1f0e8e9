"""Which of MLX's back ends computes here."""

from __future__ import annotations

from typing import Literal

import mlx.core as mx


def back_end() -> Literal["metal", "cuda", "cpu"]:
    """That of the default device."""
    if mx.default_device() == mx.cpu:
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"
