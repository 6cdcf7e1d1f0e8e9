"""Whether the folders are there that requests may name pictures in. Blocks."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from gateway.config.locations import Place
from gateway.config.models import expand_home, find_pictures
from gateway.config.places import Places, Sought
from gateway.config.settings import Settings


def picture_complaints(settings: Settings, places: Places) -> Iterator[tuple[Place, str]]:
    """Of those that could be one."""
    sought = {
        ("gateway", "image_folders", index): Sought("image_folders", folder)
        for index, folder in enumerate(settings.gateway.image_folders)
        # That it isn't absolute was told already.
        if expand_home(folder).is_absolute()
    }
    answers = places.locate(
        {each: functools.partial(find_pictures, each.path) for each in sought.values()}
    )
    for place, each in sought.items():
        if isinstance(answer := answers[each], ValueError):
            yield place, str(answer)
