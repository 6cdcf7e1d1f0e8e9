"""The memory that MLX keeps resident on a Mac: its wired limit is set at most once, while nothing
computes.

A change of the limit during work of the GPU panics the machine (mlx#3186, mlx#3346). Libraries make
such changes: mlx-lm does whenever it builds or closes a BatchGenerator. So the function that they
call does nothing, and only this module has MLX's own function.
"""

from __future__ import annotations

from typing import Final

import mlx.core as mx
from mlx_lm.generate import generation_stream

from protocol.life import Device

_set_wired_limit: Final = mx.set_wired_limit


def _leave_limit(limit: int) -> int:
    """Do nothing, and answer like MLX's own function if no memory was ever wired."""
    return 0


mx.set_wired_limit = _leave_limit


class _Wiring:
    """The wired memory of this process."""

    bytes_ = 0

    def wire(self, wanted_bytes: int, device: Device) -> None:
        """Keep so many bytes resident, or as many as the device recommends, since MLX raises for
        more. Without a recommendation nothing can be wired.
        """
        most_bytes = min(wanted_bytes, device.recommended_working_set_bytes or 0)
        if most_bytes and not self.bytes_:
            synchronize()
            _set_wired_limit(most_bytes)
            self.bytes_ = most_bytes

    def undo(self) -> None:
        """Wire nothing any more. For the end, when nothing computes."""
        if self.bytes_:
            _set_wired_limit(0)
            self.bytes_ = 0


wiring: Final = _Wiring()


def synchronize() -> None:
    """Wait for all computations that this thread has begun.

    Raises:
        RuntimeError: one of them failed.
    """
    mx.synchronize(generation_stream)
    mx.synchronize()
