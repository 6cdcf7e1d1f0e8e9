"""The blocks that steps with valid logits have looked at, and the search for a block that isn't
finite.

A step with valid logits shows that the blocks it looked at are fit for use. Memory may change after
that. So when the logits of a row aren't valid, the row's blocks are looked at themselves, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import mlx.core as mx

from worker.prompt_cache.blocks import Block

# Blocks that memory has no more are forgotten once there are so many keys.
_MOST: Final = 1 << 14


class ValidBlocks:
    """The keys of blocks that steps with valid logits have looked at, as long as memory has the
    blocks.
    """

    def __init__(self, present: Callable[[bytes], bool]) -> None:
        self._present = present
        self._keys: set[bytes] = set()
        self._most = _MOST

    def record(self, keys: Iterable[bytes]) -> None:
        self._keys.update(keys)
        if len(self._keys) > self._most:
            self._keys = {key for key in self._keys if self._present(key)}
            self._most = max(_MOST, 2 * len(self._keys))

    def depth(self, keys: Sequence[bytes]) -> int:
        """How many blocks of a path were looked at, from its beginning on."""
        known = self._keys
        return next((depth for depth, key in enumerate(keys) if key not in known), len(keys))


def is_finite(block: Block) -> bool:
    """Whether all numbers of a block are finite. Integers, as of quantized caches, always are."""
    numbers = (array for array in block.arrays if mx.issubdtype(array.dtype, mx.floating))
    return all(bool(mx.isfinite(array).all().item()) for array in numbers)
