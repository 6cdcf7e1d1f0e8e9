"""What readings of memory give, on every system."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Pressure: TypeAlias = Literal["normal", "warn", "critical"]


class Footprint(Struct, frozen=True):
    """Bytes now, and the highest they have been; None where the system doesn't keep it."""

    current_bytes: int
    peak_bytes: int | None


class FootprintError(Exception):
    """The footprint can't be read. Never taken for 0: that would be memory which came back."""


class HostError(Exception):
    """A figure of the machine can't be read."""
