"""What a reading of a process's memory gives, on every system."""

from __future__ import annotations

from msgspec import Struct


class Footprint(Struct, frozen=True):
    """Bytes now, and the highest they have been; None where the system doesn't keep it."""

    current_bytes: int
    peak_bytes: int | None


class FootprintError(Exception):
    """The footprint can't be read. Never taken for 0: that would be memory which came back."""
