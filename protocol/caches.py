"""What the caches of a batch take while they change: estimates and engines count alike."""

from __future__ import annotations

from typing import Final

# mlx-lm's caches grow by so many tokens at once.
STEP_TOKENS: Final = 256
# A layer whose cache grows, or is merged with another, exists as it was, as it will be, and once
# more while the new entries are written into it. MLX computes some layers ahead of what it has
# freed: peaks of 2.5 to 2.8 times the caches were measured with two layers on the CPU.
_LAYERS_IN_FLIGHT: Final = 4
_COPIES: Final = 2.0


def peak_share(layers: int) -> float:
    """The peak of a batch's caches in a step, as a multiple of what they take after it."""
    return 1.0 + _COPIES * min(_LAYERS_IN_FLIGHT, layers) / max(layers, 1)
