"""Models that belong together."""

from __future__ import annotations

from typing import Annotated, ClassVar

from gateway.config.kinds import Switch, Texts
from gateway.config.settings.section import Key, Section


class GroupSettings(Section, frozen=True):
    about: ClassVar[str] = "Models that belong together; the table's name is the group's."

    models: Annotated[
        tuple[str, ...],
        Key(
            Texts("ids of models"),
            "Its members, at least two: models that have a table of their own.",
            example=("coder", "embedder"),
        ),
    ]
    together: Annotated[
        bool,
        Key(Switch(), "Whoever loads one of them loads all, or none if there is no room."),
    ] = False
    swap: Annotated[
        bool,
        Key(Switch(), "One of them is loaded at a time; another takes its place."),
    ] = False
    reserve: Annotated[
        bool,
        Key(
            Switch(),
            "Room for all of them, or with swap for the largest, is kept from other models' loads; "
            "meanwhile it is lent, and called back.",
        ),
    ] = False
