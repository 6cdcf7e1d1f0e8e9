"""Who may have memory of this host. No I/O."""

from __future__ import annotations

from gateway.system.notation import format_size


class Room:
    """A budget in bytes, and what is promised of it. A rank has what it was promised, or what it
    holds if that is more.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._promised: dict[str, int] = {}
        self._held: dict[str, int] = {}

    @property
    def taken_bytes(self) -> int:
        return sum(
            max(promised_bytes, self._held[rank]) for rank, promised_bytes in self._promised.items()
        )

    @property
    def held_bytes(self) -> int:
        """By the last readings."""
        return sum(self._held.values())

    @property
    def free_bytes(self) -> int:
        return max(0, self.budget_bytes - self.taken_bytes)

    def admit(self, rank: str, needed_bytes: int) -> str | None:
        """Promise a rank its memory; why not, if there isn't so much."""
        if needed_bytes <= self.free_bytes:
            self._promised[rank] = needed_bytes
            self._held[rank] = 0
            return None
        others = f"; other ranks have {format_size(self.taken_bytes)}" if self._promised else ""
        return (
            f"it needs {format_size(needed_bytes)}, and {format_size(self.free_bytes)} of the "
            f"budget of {format_size(self.budget_bytes)} is free{others}"
        )

    def raise_to(self, rank: str, wanted_bytes: int) -> int:
        """Promise a rank so much, or what there is of it: what it is promised from now on."""
        possible_bytes = self.free_bytes + max(self._promised[rank], self._held[rank])
        wanted_bytes = min(wanted_bytes, possible_bytes)
        self._promised[rank] = max(self._promised[rank], wanted_bytes)
        return self._promised[rank]

    def note(self, rank: str, held_bytes: int) -> None:
        """A reading of a rank that may be gone by now."""
        if rank in self._held:
            self._held[rank] = held_bytes

    def gone(self, rank: str) -> None:
        self._promised.pop(rank, None)
        self._held.pop(rank, None)
