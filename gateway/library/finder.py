"""Looks for models on the disks, and offers those that have no table in the configuration.

A home is the repository or the path by which a model has a name. A model has several homes if links
lead to its folder.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from gateway.config.model_folders import (
    check_allowed,
    expand_home,
    find_folder,
    hugging_face_cache,
    repository_folder,
)
from gateway.config.model_settings import ModelSettings
from gateway.config.read import Configuration, Located
from gateway.config.settings import HUGGING_FACE, Settings
from gateway.library.folders import FoundModel, search
from gateway.library.names import Claimant, Names, give_names, news, rehomed, remembered
from gateway.system.file_access import denied
from gateway.system.lane import Inquiries
from gateway.system.state_file import read_state, write_state

logger = logging.getLogger(__name__)

# The deadline of all places together. A disk that sleeps takes seconds, a dead one never answers.
_ANSWER_S: Final = 10.0


class Holders(Struct, frozen=True):
    """Who has which name. `names` maps names to homes of models, `mounts` each home to the folder
    at which its disk was mounted, and `folders` each home to the folder that it led to, by links.
    """

    names: dict[str, str] = {}
    mounts: dict[str, str] = {}
    folders: dict[str, str] = {}


class _SearchResult(NamedTuple):
    """A search of one place: the models, where the disks of their homes are mounted, and those of
    the known homes that were removed.
    """

    models: list[FoundModel]
    mounts: dict[str, str]
    removed: set[str]


def _search_place(place: str, mounts: Mapping[str, str]) -> _SearchResult:
    """Search a place. `mounts` are those of the known homes. Blocks. Raises OSError."""
    models = search(place)
    homes = {claim.home for model in models for claim in model.claims}
    is_there = place != HUGGING_FACE or hugging_face_cache().is_dir()
    removed = {
        home
        for home, mount in mounts.items()
        if is_there
        and _is_in(place, home)
        and not os.path.lexists(_path_of(home))
        # A disk that isn't mounted leaves an empty folder, or none.
        and os.path.ismount(mount)
    }
    return _SearchResult(models, {home: _mount_of(_path_of(home)) for home in homes}, removed)


def _is_in(place: str, home: str) -> bool:
    root = hugging_face_cache() if place == HUGGING_FACE else expand_home(place)
    return _path_of(home).is_relative_to(os.path.abspath(root))  # noqa: PTH100


def _path_of(home: str) -> Path:
    return Path(home) if home.startswith("/") else repository_folder(home)


def _mount_of(path: Path) -> str:
    folder = os.path.realpath(path.parent)
    while not os.path.ismount(folder):
        folder = os.path.dirname(folder)  # noqa: PTH120
    return folder


class Finder:
    """Searches all places of `models.discover` at once."""

    def __init__(self) -> None:
        self._searches: Inquiries[str, _SearchResult] = Inquiries()
        self._folders: Inquiries[str, str] = Inquiries()
        self._known: dict[str, _SearchResult] = {}
        self._warned_places: set[str] = set()
        self._holders = Holders()
        self._names_path: Path | None = None
        # The new name of that file, if it can't be read.
        self._unreadable: Path | None = None
        self._writes = False

    def read_names(self, path: Path) -> None:
        """Read who had which name from a file, at the first call alone. Blocks."""
        if self._names_path is None:
            self._names_path = path
            holders = read_state(path, Holders)
            if holders is not None:
                self._holders = holders
            elif path.exists():
                self._unreadable = path.with_suffix(".unreadable")

    def store_names(self) -> None:
        """Write who has which name to the file that was read, now and at each change. Blocks."""
        self._writes = True
        if self._names_path is not None and self._unreadable is not None:
            with contextlib.suppress(OSError):
                self._names_path.replace(self._unreadable)
            self._unreadable = None
        self._write()

    def find(self, settings: Settings) -> list[FoundModel]:
        """All models, complete or not. If a place can't be read, the models of its last search
        count, so that no model ends because a network share is away for a moment. Blocks.
        """
        return _models_of(self._search(settings))

    def with_found(self, configuration: Configuration) -> Configuration:
        """The configuration, and all complete models that have no table in it. Models that an
        earlier search found, and that are gone now, are left out. Blocks.
        """
        settings = configuration.settings
        configured = {
            model_id: model
            for model_id, model in settings.models.items()
            if model_id not in configuration.discovered
        }
        located = {model_id: configuration.located[model_id] for model_id in configured}
        paths = {located_model.path for located_model in located.values()}
        repositories = {path for path in paths if not path.startswith("/")}
        # The folders are located while the places are searched.
        self._locate(repositories)
        results = self._search(settings)
        on_disks = _models_of(results)
        served = paths | self._real_folders(repositories)
        claimants = _claimants(on_disks, served, settings.gateway.allow)
        aliases = (alias for model in configured.values() for alias in model.aliases)
        names, sentences = self._give_names(
            claimants, {*configured, *aliases}, settings.discovery.discover, results
        )
        models = {
            given[0]: ModelSettings(path=source, aliases=tuple(given[1:]))
            for source, given in names.given.items()
        }
        return msgspec.structs.replace(
            configuration,
            settings=msgspec.structs.replace(settings, models=configured | models),
            located=located | {model_id: Located(model.path) for model_id, model in models.items()},
            discovered=frozenset(models),
            names=names.holders,
            news=tuple(sentences),
            broken=_broken(on_disks, names),
        )

    def _locate(self, repositories: Iterable[str]) -> None:
        """Begin to locate the folders of repositories, for `_real_folders`."""
        for repository in repositories:
            real_folder = functools.partial(_real_folder, repository)
            self._folders.ask(repository, real_folder, f"locate {repository}")

    def _give_names(
        self,
        claimants: list[Claimant],
        taken: Collection[str],
        places: Iterable[str],
        results: list[_SearchResult],
    ) -> tuple[Names, list[str]]:
        """The names of the models, and sentences about changes of names."""
        before = rehomed(self._holders.names, self._holders.folders, claimants)
        removed = {home for result in results for home in result.removed}
        left = {name: home for name, home in before.items() if home not in removed}
        # Names of models in places that aren't searched now are free to others, but are remembered.
        sought = {
            name: home
            for name, home in left.items()
            if any(_is_in(place, home) for place in places)
        }
        names = give_names(sought, taken, claimants)
        sentences = news(before, names.holders)
        if self._unreadable is not None:
            sentences.insert(
                0,
                f"{self._names_path} can't be read, so models get their names anew. It is kept as "
                f"{self._unreadable}.",
            )
        self._remember(left | names.holders, results)
        return names, sentences

    def _remember(self, names: dict[str, str], results: list[_SearchResult]) -> None:
        present_mounts = {
            home: mount for result in results for home, mount in result.mounts.items()
        }
        mounts = self._holders.mounts | present_mounts
        folders = self._holders.folders | {
            claim.home: model.folder
            for result in results
            for model in result.models
            for claim in model.claims
        }
        by_name = remembered(names, present_mounts)
        homes = by_name.values()
        holders = Holders(
            by_name,
            {home: mounts.get(home, "/") for home in homes},
            {home: folders[home] for home in homes if home in folders},
        )
        file_is_missing = (
            self._writes and self._names_path is not None and not self._names_path.exists()
        )
        if holders != self._holders or file_is_missing:
            self._holders = holders
            self._write()

    def _write(self) -> None:
        if self._writes and self._names_path is not None:
            write_state(self._names_path, self._holders)

    def _real_folders(self, repositories: Iterable[str]) -> set[str]:
        """The folders of the repositories, as far as they answer."""
        folders = set()
        for repository in repositories:
            with contextlib.suppress(OSError):
                folders.add(self._folders.answer(repository, _ANSWER_S))
        return folders

    def _search(self, settings: Settings) -> list[_SearchResult]:
        places = settings.discovery.discover
        for place in places:
            search_place = functools.partial(_search_place, place, self._holders.mounts)
            self._searches.ask(place, search_place, f"discover {place}")
        return [self._answer(place) for place in places]

    def _answer(self, place: str) -> _SearchResult:
        try:
            result = self._searches.answer(place, _ANSWER_S)
        except TimeoutError:
            self._warn_once(place, f"it did not answer within {_ANSWER_S:g} s")
        except OSError as error:
            self._warn_once(place, denied(error) or error.strerror or str(error))
        else:
            self._warned_places.discard(place)
            self._known[place] = result
            return result
        last = self._known.get(place, _SearchResult([], {}, set()))
        return last._replace(removed=set())

    def _warn_once(self, place: str, why: str) -> None:
        if place not in self._warned_places:
            logger.warning("No models are looked for in %s: %s", place, why)
        self._warned_places.add(place)


def _models_of(results: Iterable[_SearchResult]) -> list[FoundModel]:
    return _merged(model for result in results for model in result.models)


def _claimants(
    on_disks: Iterable[FoundModel], served: Collection[str], allowed: tuple[str, ...]
) -> list[Claimant]:
    """The models that may be served and need names. `served` are the sources and folders of
    configured models.
    """
    return [
        Claimant(model.source, model.claims, model.folder)
        for model in on_disks
        if model.description.problem is None
        and model.source not in served
        and model.folder not in served
        and _is_allowed(model, allowed)
    ]


def _broken(found_models: Iterable[FoundModel], names: Names) -> dict[str, str]:
    """Why models that once had a name aren't served now, by their names."""
    problems = {
        claim.home: model.description.problem
        for model in found_models
        for claim in model.claims
        if model.description.problem is not None
    }
    return {name: problems[home] for name, home in names.holders.items() if home in problems}


def _real_folder(repository: str) -> str:
    return os.path.realpath(find_folder(repository))


def _merged(found_models: Iterable[FoundModel]) -> list[FoundModel]:
    """The models without repetitions. A model to which links lead has their names, and is removed
    where it really is.
    """
    alike: dict[str, list[FoundModel]] = {}
    for model in found_models:
        alike.setdefault(model.folder, []).append(model)
    return [_joined(models) for models in alike.values()]


def _joined(models: list[FoundModel]) -> FoundModel:
    # Links come first, then the folder, then the repository.
    models.sort(key=lambda model: (not model.source.startswith("/"), model.path == model.source))
    claims = dict.fromkeys(claim for model in models for claim in model.claims)
    return msgspec.structs.replace(models[-1], claims=tuple(claims))


def _is_allowed(model: FoundModel, allowed: tuple[str, ...]) -> bool:
    for located in (model.source, model.folder):
        try:
            check_allowed(located, allowed)
        except ValueError:
            continue
        return True
    return False
