"""The folders in which models are looked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from gateway.config.model_folders import expand_home
from gateway.config.settings import HUGGING_FACE
from gateway.doctor.finding import Finding, ok, warning
from gateway.doctor.installation import Installation
from gateway.system.machine import away, denied

_CHECK: Final = "discovery"


def look_at_discovery(installation: Installation) -> Iterator[Finding]:
    """The Hugging Face cache has a check of its own."""
    places = [each for each in installation.settings.discovery.discover if each != HUGGING_FACE]
    unread = [(place, why) for place in places if (why := _obstacle(place)) is not None]
    for place, why in unread:
        yield warning(
            _CHECK,
            f"No models are looked for in {place}: {why}",
            "Correct models.discover, connect the disk, or let the account that runs the gateway "
            "read it. Nobody's model is taken away meanwhile.",
        )
    if not unread:
        yield ok(_CHECK, f"{len(places)} folders can be read." if places else "No folder is named.")


def _obstacle(place: str) -> str | None:
    folder = expand_home(place)
    if (absent := away(folder / "model")) is not None:
        return str(absent)
    try:
        with os.scandir(folder):
            return None
    except OSError as error:
        return denied(error) or f"{error.strerror}."
