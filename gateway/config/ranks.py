"""What a model of several ranks needs beside right values: agents' keys, and heads that its ranks
can share. Blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping

from gateway.config.keys import HOSTS, MODELS
from gateway.config.locations import Place
from gateway.config.models import expand_home, find_folder
from gateway.config.places import Places, Sought
from gateway.config.settings import Settings
from gateway.system.state_file import read_secret
from protocol.model_files import read_config
from protocol.ranks import undivided


def key_complaints(settings: Settings, places: Places) -> Iterator[tuple[Place, str]]:
    """Of the hosts that are configured."""
    sought: dict[Place, Sought] = {
        (HOSTS, name, "key_file"): Sought("key_file", host.key_file)
        for name, host in settings.hosts.items()
        # What is missing was told already.
        if host.key_file
    }
    yield from _complaints(
        places, sought, {each: functools.partial(_read_key, each.path) for each in sought.values()}
    )


def heads_complaints(
    settings: Settings, folders: Mapping[str, str], places: Places
) -> Iterator[tuple[Place, str]]:
    """Of the models that were found, by what `folders` has of them. Of others the load says it."""
    sought: dict[Place, Sought] = {}
    looks: dict[Sought, Callable[[], str]] = {}
    for model_id, located in folders.items():
        model = settings.models[model_id]
        size = len(model.places)
        if size > 1 and model.split == "tensor":
            place = (MODELS, model_id, "ranks" if model.ranks else "local")
            sought[place] = each = Sought(f"heads for {size}", located)
            looks[each] = functools.partial(_check_heads, located, size)
    yield from _complaints(places, sought, looks)


def _complaints(
    places: Places, sought: Mapping[Place, Sought], looks: Mapping[Sought, Callable[[], str]]
) -> Iterator[tuple[Place, str]]:
    answers = places.locate(looks)
    for place, each in sought.items():
        if isinstance(answer := answers[each], ValueError):
            yield place, str(answer)


def _read_key(path: str) -> str:
    """Raises: ValueError."""
    file = expand_home(path)
    try:
        read_secret(file)
    except FileNotFoundError:
        raise ValueError(
            f"there is no file {file}: copy agent.key from the state folder of the agent"
        ) from None
    except PermissionError as error:
        raise ValueError(f"{file} can't be used: {error.strerror}; `chmod 600 {file}`") from error
    except OSError as error:
        raise ValueError(f"{file} can't be read: {error.strerror}") from error
    return ""


def _check_heads(located: str, size: int) -> str:
    """Raises: ValueError."""
    try:
        config = read_config(find_folder(located))
    except (OSError, ValueError):
        # It may be there later, and what is wrong with it is the load's to say.
        return ""
    if (reason := undivided(config, size)) is not None:
        raise ValueError(
            f"the model can't be split over {size} ranks by tensors: {reason}; choose a number "
            'that does, or split = "pipeline"'
        )
    return ""
