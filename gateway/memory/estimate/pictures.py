"""Bytes that looking at pictures takes: decoded ones, and their way through the part that sees.

Its weights are in the same files as the language model's, and counted with these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.memory.estimate.cache import first
from protocol.pictures import MOST_PIXELS, MOST_SEEN_PIXELS

# Red, green and blue, and once more while a picture is turned or laid on white.
_DECODED_BYTES: Final = MOST_PIXELS * 3 * 2
# In single precision: a processor's array and MLX's copy of it, for the request that runs, and for
# the one that is prepared meanwhile.
_ARRAY_BYTES: Final = 3 * 4 * 2 * 2
_PATCH: Final = 14


def picture_bytes(config: Mapping[str, Any], element_bytes: int) -> int:
    """For a request with one picture of the largest size that is looked at."""
    vision = config.get("vision_config")
    seen = vision if isinstance(vision, dict) else {}
    patch = first(seen, "patch_size", "spatial_patch_size") or _PATCH
    width = first(seen, "embed_dim", "hidden_size", "width")
    inner = first(seen, "intermediate_size") or 4 * width
    patches = MOST_SEEN_PIXELS // patch**2
    layers = patches * (4 * width + 3 * inner) * element_bytes
    return _DECODED_BYTES + MOST_SEEN_PIXELS * _ARRAY_BYTES + layers
