"""The memory of a check of a model, in a process beside those that serve."""

from __future__ import annotations

from msgspec import Struct


class CheckRoom(Struct):
    """A check gets at least `least_bytes`, and up to `wanted_bytes`, of memory that no model waits
    for. Until then `granted_bytes` is 0. With `ends` a model needs the granted bytes: the process
    of the check must end.
    """

    model_id: str
    least_bytes: int
    wanted_bytes: int
    granted_bytes: int = 0
    ends: bool = False

    @property
    def coming_bytes(self) -> int:
        """The bytes that are being freed."""
        return self.granted_bytes if self.ends else 0

    def grant(self, free_bytes: int) -> None:
        """Take what is needed, and beyond that no more than half of the free bytes, so that loans
        can still grow.
        """
        beyond_bytes = min(self.wanted_bytes - self.least_bytes, free_bytes - self.least_bytes)
        self.granted_bytes = self.least_bytes + max(0, beyond_bytes // 2)

    def end(self) -> int:
        """Have the process end, for a model. Returns the bytes that this will free."""
        if self.ends:
            return 0
        self.ends = self.granted_bytes > 0
        return self.coming_bytes
