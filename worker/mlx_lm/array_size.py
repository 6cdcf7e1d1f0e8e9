"""The size that no array of a worker exceeds."""

from __future__ import annotations

from typing import Final

# Some of MLX's kernels count the elements of an array in 32 bits. On CUDA, mx.concatenate along any
# axis but the first one gave wrong elements beyond this number, without an error (mlx 0.32.4).
MOST_ELEMENTS: Final = (1 << 31) - 1


def most_parts(part_elements: int) -> int:
    """How many parts of `part_elements` elements one array can have, at least one."""
    return max(1, MOST_ELEMENTS // max(1, part_elements))
