"""A number of bytes that many share. No I/O."""

from __future__ import annotations

import threading


class ByteBudget:
    """What is taken must be given back. Who calls from several threads has the `lock` meanwhile."""

    def __init__(self, total_bytes: int) -> None:
        self.lock = threading.Lock()
        self.total_bytes = self.left_bytes = total_bytes

    def take(self, wanted_bytes: int) -> bool:
        """Whether there was enough left."""
        if wanted_bytes > self.left_bytes:
            return False
        self.left_bytes -= wanted_bytes
        return True

    def give_back(self, taken_bytes: int) -> None:
        self.left_bytes += taken_bytes
