"""What the tables of the file have in common."""

from __future__ import annotations

from msgspec import Struct


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the file's tables; a table's docstring tells people what it is for."""
