"""Where the ranks of a model run, as the configuration has it."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

# The gateway's own machine.
LOCAL: Final = "local"
_Word: TypeAlias = Annotated[str, Meta(min_length=1)]


class RankPlace(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A host by its name, and the addresses at which the other ranks reach this one there; none: by
    the host's only one, or what leads to it.
    """

    host: _Word
    interfaces: tuple[_Word, ...] = ()

    def __post_init__(self) -> None:
        if not all(each.isprintable() for each in (self.host, *self.interfaces)):
            raise ValueError("names and addresses have printable characters alone")
