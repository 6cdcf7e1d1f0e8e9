"""A pull at one moment, as the gateway tells it, or the command that pulls by itself."""

from __future__ import annotations

from msgspec import Struct


class OutlookReading(Struct, frozen=True):
    fits: bool
    sentence: str


class PullReading(Struct, frozen=True, kw_only=True):
    """A pull at one moment. `id` is empty if this command itself pulls."""

    id: str
    model: str
    state: str
    repository: str | None = None
    reason: str | None = None
    code: str | None = None
    done_bytes: int | None = None
    total_bytes: int | None = None
    bytes_per_s: float | None = None
    seconds_left: float | None = None
    outlook: OutlookReading | None = None
    offered_as: str | None = None
