"""Models that belong together."""

from __future__ import annotations

from typing import Annotated

from gateway.config.kinds import Text, switch, texts
from gateway.config.settings.section import Section


class GroupSettings(Section, frozen=True):
    """Models that belong together; the table's name is the group's."""

    models: Annotated[
        tuple[Text, ...],
        texts(
            "Its members, at least two: models that have a table of their own.",
            "ids of models",
            example=("coder", "embedder"),
        ),
    ]
    together: Annotated[
        bool, switch("Whoever loads one of them loads all, or none if there is no room.")
    ] = False
    swap: Annotated[bool, switch("One of them is loaded at a time; another takes its place.")] = (
        False
    )
    reserve: Annotated[
        bool,
        switch(
            "Room for all of them, or with swap for the largest, is kept from other models' loads; "
            "meanwhile it is lent, and called back."
        ),
    ] = False
