"""How long answers are kept, and how many of them. No I/O."""

from __future__ import annotations

from msgspec import Struct

# What an entry takes beside its contents. Without it, empty ones would have no bound.
OVERHEAD_BYTES = 4096


class Retention(Struct, frozen=True):
    """Answers are kept for `keep_s` once they are there, and all together within `size_bytes`."""

    keep_s: float
    size_bytes: int

    def expired(self, ended_at: float, now: float) -> bool:
        return ended_at <= self.expires_before(now)

    def expires_before(self, now: float) -> float:
        """Who ended by then has waited long enough."""
        return now - self.keep_s

    def excess_bytes(self, held_bytes: int, more_bytes: int) -> int:
        """How much must go before so much more can come."""
        return max(0, held_bytes + more_bytes - self.size_bytes)


def share_of_free(total: int, others: int) -> int:
    """How much one owner may have of a total while others have so much: half of what they leave, so
    that nobody takes all, whoever comes later.
    """
    return max(0, total - others + 1) // 2


def charged_bytes(*contents: bytes) -> int:
    """What an entry with these contents counts for."""
    return OVERHEAD_BYTES + sum(map(len, contents))
