"""What MLX keeps resident on a Mac. Its wired limit is set at most once, while nothing computes.

To change it beside work of the GPU panics the machine, with everything on it (mlx#3186, mlx#3346).
Libraries do so: mlx-lm for each BatchGenerator that it builds, and again as that closes. So what
they call does nothing; this module alone has MLX's own function.
"""

from __future__ import annotations

from typing import Final

import mlx.core as mx
from mlx_lm.generate import generation_stream

from protocol.life import Device

_set_wired_limit: Final = mx.set_wired_limit


def _leave_limit(limit: int) -> int:
    """As MLX's own, of which nothing was ever wired."""
    return 0


mx.set_wired_limit = _leave_limit


class _Wiring:
    """Of this process."""

    bytes_ = 0

    def wire(self, wanted_bytes: int, device: Device) -> None:
        """Keep so many bytes resident, or as many as the device recommends, beyond which MLX
        raises. Where it recommends none nothing can be wired.
        """
        most_bytes = min(wanted_bytes, device.recommended_working_set_bytes or 0)
        if most_bytes and not self.bytes_:
            synchronize()
            _set_wired_limit(most_bytes)
            self.bytes_ = most_bytes

    def undo(self) -> None:
        """For the end, once nothing computes any more."""
        if self.bytes_:
            _set_wired_limit(0)
            self.bytes_ = 0


wiring: Final = _Wiring()


def synchronize() -> None:
    """Wait for all that this thread has had computed.

    Raises:
        RuntimeError: some of it failed.
    """
    mx.synchronize(generation_stream)
    mx.synchronize()
