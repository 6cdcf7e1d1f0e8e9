"""What a table of the file is, and what is said of its keys."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from gateway.config.kinds import Kind


class Key(Struct, frozen=True):
    """What is said of a key beside its default.

    `example` is an answer where the default says nothing, or none is; `unset` says what None means.
    `restart`: the running gateway can't take a new value.
    """

    kind: Kind
    about: str
    example: str | int | tuple[str, ...] | None = None
    unset: str | None = None
    restart: bool = False


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the file's tables; `about` says what one is for."""

    about: ClassVar[str]
