"""Finds models in folders and in the Hugging Face cache, and offers models that have no table in
the configuration.
"""

from __future__ import annotations

import functools
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from gateway.config.model_folders import check_allowed, expand_home, find_folder, hugging_face_cache
from gateway.config.model_settings import ModelSettings
from gateway.config.read import Configuration, Located
from gateway.config.settings import HUGGING_FACE, Settings
from gateway.library.description import NOTHING, Description, describe
from gateway.system.lane import Inquiries
from gateway.system.machine import denied

_DEEPEST: Final = 3
_MOST_FOLDERS: Final = 20_000
_MOST_MODELS: Final = 1_000
_PREFIX: Final = "models--"


class FoundModel(Struct, frozen=True):
    """A model on a disk. A worker loads `source`: a repository or an absolute folder. `path` is the
    folder of the model on the disk. `size_bytes` is the size of the model's files; `part_bytes` of
    these are of a pull that has not ended.
    """

    source: str
    path: str
    size_bytes: int
    part_bytes: int
    description: Description

    @property
    def name(self) -> str:
        return self.source.rpartition("/")[2]


def search(place: str) -> list[FoundModel]:
    """The models in the folder `place`, or in the Hugging Face cache. Blocks.

    Raises OSError.
    """
    if place == HUGGING_FACE:
        return list(_cached(hugging_face_cache()))
    root = expand_home(place)
    return [_in_folder(each) for each in _folders(root)]


def _cached(cache: Path) -> Iterator[FoundModel]:
    if not cache.is_dir():
        return
    names = sorted(each.name for each in cache.iterdir() if each.name.startswith(_PREFIX))
    for name in names[:_MOST_MODELS]:
        owner, _, rest = name.removeprefix(_PREFIX).partition("--")
        if owner and rest and _can_be_told(name):
            yield _repository(cache / name, f"{owner}/{rest.replace('--', '/')}")


def _repository(folder: Path, source: str) -> FoundModel:
    size_bytes, part_bytes = sizes(folder)
    try:
        description = describe(find_folder(source))
    except OSError:
        description = msgspec.structs.replace(NOTHING, problem="it is not whole: pull it to go on")
    return FoundModel(source, str(folder), size_bytes, part_bytes, description)


def _in_folder(folder: Path) -> FoundModel:
    size_bytes, part_bytes = sizes(folder)
    return FoundModel(str(folder.resolve()), str(folder), size_bytes, part_bytes, describe(folder))


def _folders(root: Path) -> Iterator[Path]:
    """The folders with a config.json in and below `root`. Folders inside a found folder are not
    searched.
    """
    waiting = [(root, 0)]
    looked = found = 0
    while waiting and looked < _MOST_FOLDERS and found < _MOST_MODELS:
        folder, depth = waiting.pop()
        looked += 1
        if os.path.isfile(folder / "config.json"):  # noqa: PTH113 - Path.is_file may raise.
            found += 1
            yield folder
            continue
        if depth == _DEEPEST:
            continue
        try:
            entries = sorted(os.scandir(folder), key=lambda each: each.name, reverse=True)
        except OSError:
            if folder == root:
                raise
            continue
        waiting += [
            (Path(each.path), depth + 1)
            for each in entries
            if not each.name.startswith(".") and _can_be_told(each.name) and _is_folder(each)
        ]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # The entry may be a link that leads to itself.
        return False


def _can_be_told(name: str) -> bool:
    """Whether JSON can have this name of a file. It can't if the name isn't UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def sizes(folder: Path) -> tuple[int, int]:
    """The bytes that the removal of a folder would free, and the bytes of these that belong to
    pulls that have not ended. Links don't count, nor does a file with further hard links.
    """
    size_bytes = part_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                found = Path(parent, name).lstat()
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                size_bytes += found.st_size
                part_bytes += found.st_size if name.endswith(".incomplete") else 0
    return size_bytes, part_bytes


logger = logging.getLogger(__name__)

# The deadline of all places together. A disk that sleeps takes seconds, a dead one never answers.
_ANSWER_S: Final = 10.0


class Finder:
    """Searches all places of `models.discover` at once."""

    def __init__(self) -> None:
        self._inquiries: Inquiries[str, list[FoundModel]] = Inquiries()
        self._known: dict[str, list[FoundModel]] = {}
        self._said: set[str] = set()

    def find(self, settings: Settings) -> list[FoundModel]:
        """All models, complete or not. If a place can't be read, the models of its last search
        count, so that no model ends because a share is away for a moment. Blocks.
        """
        places = settings.discovery.discover
        for place in places:
            self._inquiries.ask(place, functools.partial(search, place), f"discover {place}")
        found: dict[str, FoundModel] = {}
        for place in places:
            for each in self._answer(place):
                found.setdefault(each.source, each)
        return list(found.values())

    def with_found(self, configuration: Configuration) -> Configuration:
        """The configuration, and all complete models that have no table in it. Models that an
        earlier search found, and that are gone now, are left out. Blocks.
        """
        settings = configuration.settings
        own = {
            model_id: model
            for model_id, model in settings.models.items()
            if model_id not in configuration.discovered
        }
        located = {model_id: configuration.located[model_id] for model_id in own}
        offered = offered_ids(own, located, settings, self.find(settings))
        return msgspec.structs.replace(
            configuration,
            settings=msgspec.structs.replace(
                settings,
                models=own | {name: ModelSettings(path=each) for name, each in offered.items()},
            ),
            located=located | {name: Located(each) for name, each in offered.items()},
            discovered=frozenset(offered),
        )

    def _answer(self, place: str) -> list[FoundModel]:
        try:
            found = self._inquiries.answer(place, _ANSWER_S)
        except TimeoutError:
            self._complain(place, f"it did not answer within {_ANSWER_S:g} s")
            return self._known.get(place, [])
        except OSError as error:
            self._complain(place, denied(error) or error.strerror or str(error))
            return self._known.get(place, [])
        self._said.discard(place)
        self._known[place] = found
        return found

    def _complain(self, place: str, why: str) -> None:
        if place not in self._said:
            logger.warning("No models are looked for in %s: %s", place, why)
        self._said.add(place)


def offered_ids(
    own: dict[str, ModelSettings],
    located: dict[str, Located],
    settings: Settings,
    found: list[FoundModel],
) -> dict[str, str]:
    """The sources of the models to offer, by their ids. The id of a model is its name. If the name
    is taken, the id is the name with its owner or folder; a model isn't offered if that is taken
    as well.
    """
    taken = {*own, *(alias for each in own.values() for alias in each.aliases)}
    served = {each.path for each in located.values()}
    offered: dict[str, str] = {}
    for each in sorted(found, key=lambda each: (each.name, each.source)):
        if each.description.problem is not None or each.source in served:
            continue
        if settings.gateway.allow and not _is_allowed(each.source, settings.gateway.allow):
            continue
        longer = "/".join(each.source.split("/")[-2:])
        for name in (each.name, longer):
            if name not in taken and name.isprintable():
                taken.add(name)
                offered[name] = each.source
                break
    return offered


def _is_allowed(source: str, allowed: tuple[str, ...]) -> bool:
    try:
        check_allowed(source, allowed)
    except ValueError:
        return False
    return True
