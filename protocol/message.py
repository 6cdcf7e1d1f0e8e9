"""What every message is."""

from __future__ import annotations

from msgspec import Struct


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of everything that travels alone in a frame."""
