"""What a probe of `doctor --mac` has seen."""

from __future__ import annotations

from msgspec import Struct


class Seen(Struct, frozen=True):
    """A part of a sentence. `holds` says whether the assumption holds; None: that isn't judged."""

    text: str
    holds: bool | None = None
