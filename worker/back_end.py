"""What is settled of MLX's back ends before MLX is imported."""

from __future__ import annotations

import os
from typing import Final

# cuDNN's attention is planned anew for each shape, which takes 0.2 to 4 s, and in serving nearly
# every step is a new one: on an H100 the first requests of a 0.9 GB model waited for plans for
# 27 s, and without them for 0.8 s; 32 streams ran at 0.7 of the speed (MLX 0.32.4).
_SETTINGS: Final = {"MLX_CUDA_USE_CUDNN_SDPA": "0"}


def settle() -> None:
    """Whatever the operator has set stays."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
