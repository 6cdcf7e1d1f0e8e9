"""What models wait for.

No I/O and no clock here; times are seconds on the caller's clock, sizes are bytes.
"""

from __future__ import annotations

from msgspec import Struct


class Claim(Struct):
    """Memory that is waited for, since when, and how much the requests behind it matter.

    That of a model without a process is for its floor. That of a model that is loaded (`loan`) is
    for what its next sequence needs before anything can go on. Models that are loaded together
    have one claim, named after one of them, with a part for each.
    """

    model_id: str
    needed_bytes: int
    priority: int
    since: float
    loan: bool = False
    pinned: bool = False
    parts: tuple[Claim, ...] = ()

    @property
    def each(self) -> tuple[Claim, ...]:
        """Its parts, or itself if it has none."""
        return self.parts or (self,)

    @property
    def model_ids(self) -> frozenset[str]:
        return frozenset(part.model_id for part in self.each)
