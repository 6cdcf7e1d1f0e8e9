"""What this process may hold, as limits of MLX and as room for caches."""

from __future__ import annotations

from typing import Final

import mlx.core as mx

from worker.engines.room import Room
from worker.system.memory import wait_for_computing

# MLX's limit is a guard rail and lies above what the engine keeps to: past it every command buffer
# is waited for, and each miss empties the buffer cache (mlx transforms.cpp, allocator.cpp).
_GUARD_SHARE: Final = 0.1
_LEAST_GUARD_BYTES: Final = 256_000_000
# Fewer, and a step's temporaries are allocated anew each time.
_LEAST_CACHE_BYTES: Final = 32_000_000
# More than any machine has.
_LARGEST_BYTES: Final = 1 << 62


class Limits:
    """Of one worker with a model. The engine steers by `room`; MLX's limits follow it."""

    def __init__(self, room: Room, weight_bytes: int) -> None:
        self.room = room
        self._weight_bytes = weight_bytes
        self._least_beside_bytes = _LARGEST_BYTES

    def take(self, limit_bytes: int, beside_bytes: int) -> None:
        """Another limit, of which the process takes so much beside MLX."""
        self._least_beside_bytes = min(self._least_beside_bytes, beside_bytes)
        self.room.limit_bytes = limit_bytes
        self.room.fixed_bytes = beside_bytes + self._weight_bytes
        self.room.grown_bytes = beside_bytes - self._least_beside_bytes
        self._apply()

    @property
    def mlx_bytes(self) -> int:
        """What the limit leaves to MLX's account; 0 without one."""
        if self.room.limit_bytes is None:
            return 0
        return self.room.limit_bytes - (self.room.fixed_bytes - self._weight_bytes)

    def _apply(self) -> None:
        # Below what is active a limit does nothing but harm.
        mlx_bytes = max(self.mlx_bytes, mx.get_active_memory())
        mx.set_memory_limit(mlx_bytes + max(int(mlx_bytes * _GUARD_SHARE), _LEAST_GUARD_BYTES))
        # What a peak leaves behind is what the next one takes: given back, it would be allocated
        # anew each time, which on a GPU waits for everything.
        peaks_bytes = int(self.room.free_bytes * (1.0 - 1.0 / self.room.shape.peak))
        wait_for_computing()
        mx.set_cache_limit(max(self.room.working_bytes, _LEAST_CACHE_BYTES) + peaks_bytes)
