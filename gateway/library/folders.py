"""Models in folders and in the Hugging Face cache, as people and their tools put them there."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from gateway.config.model_folders import expand_home, hugging_face_cache
from gateway.config.settings import HUGGING_FACE
from gateway.library.description import NOTHING, Description, describe
from gateway.library.names import NameClaim
from protocol.hub_cache import NotInCacheError, find_snapshot

_DEEPEST: Final = 3
_MOST_FOLDERS: Final = 20_000
_MOST_MODELS: Final = 1_000
_PREFIX: Final = "models--"
# Other things than models in a Hugging Face cache.
_OTHER_PREFIXES: Final = (".", "datasets--", "spaces--")
_WEIGHTS: Final = (".safetensors", ".bin", ".npz", ".gguf", ".pt", ".pth")


class FoundModel(Struct, frozen=True, kw_only=True):
    """A model on a disk. A worker loads `source`: a repository or an absolute folder. `folder` is
    where the model's files are, without links: one model may be found in several ways. `path` is
    the folder to remove. `size_bytes` is the size of the files there, also by links. A removal
    would free `freed_bytes`; `part_bytes` of these are of a pull that has not ended. `claims` are
    the names that the model may have.
    """

    source: str
    folder: str
    path: str
    size_bytes: int
    freed_bytes: int
    part_bytes: int
    description: Description
    claims: tuple[NameClaim, ...] = ()


def search(place: str) -> list[FoundModel]:
    """The models in the folder `place`, or in the Hugging Face cache. Blocks.

    Raises OSError.
    """
    in_cache = place == HUGGING_FACE
    root = hugging_face_cache() if in_cache else expand_home(place)
    if in_cache and not root.is_dir():
        return []
    spots = _Walk(root, in_cache=in_cache).spots(root)
    models = [_examined(spot, in_cache=in_cache and spot.folder.parent == root) for spot in spots]
    return [model for model in models if _is_encodable(model.source)]


class _Spot(NamedTuple):
    """A folder with a model. `repository` is the name of the repository whose folder it is, as in a
    Hugging Face cache. `has_weights`: not only a configuration seems to be there.
    """

    folder: Path
    repository: str | None
    has_weights: bool


def _examined(spot: _Spot, *, in_cache: bool) -> FoundModel:
    """`in_cache`: the folder is in the Hugging Face cache, where workers know repositories."""
    path = Path(os.path.abspath(spot.folder))  # noqa: PTH100 - A link keeps its own name.
    home, named, folder, problem = str(path), path, path, None
    if spot.repository is not None:
        try:
            folder = find_snapshot(path)
        except OSError as error:
            pull = ": pull it to go on" if isinstance(error, NotInCacheError) else ""
            problem = f"{error}{pull}"
        if path.name.startswith(_PREFIX):
            named = Path(spot.repository)
            home = spot.repository if in_cache else home
    resolved = os.path.realpath(folder)
    measured = sizes(path)
    return FoundModel(
        source=resolved if home == str(path) else home,
        folder=resolved,
        path=str(path),
        size_bytes=measured.all_bytes,
        freed_bytes=measured.freed_bytes,
        part_bytes=measured.part_bytes,
        description=(
            describe(folder)
            if problem is None
            else msgspec.structs.replace(NOTHING, problem=problem)
        ),
        claims=(NameClaim(home, named.name, "/".join(named.parts[-2:])),),
    )


class _Walk:
    """A search for models in and below a folder."""

    def __init__(self, root: Path, *, in_cache: bool) -> None:
        self._root = root
        self._in_cache = in_cache
        self._folders_left = _MOST_FOLDERS
        self._models_left = _MOST_MODELS

    def spots(self, folder: Path, depth: int = 0) -> list[_Spot]:
        """The models in and below a folder. Inside a model no others are looked for, except in a
        folder of models in which somebody has left a config.json.

        Raises: OSError: the root can't be read.
        """
        if not (self._folders_left and self._models_left):
            return []
        self._folders_left -= 1
        if (repository := _repository_in(folder)) is not None:
            return self._one(folder, repository, has_weights=True)
        is_cache = self._in_cache and folder == self._root
        has_config = not is_cache and os.path.isfile(folder / "config.json")  # noqa: PTH113
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            if folder == self._root and not has_config:
                raise
            entries = []
        has_weights = any(entry.name.endswith(_WEIGHTS) for entry in entries)
        if has_config and has_weights:
            return self._one(folder, None, has_weights=True)
        below = [
            spot
            for entry in entries
            if depth < _DEEPEST and self._is_looked_into(entry)
            for spot in self.spots(Path(entry.path), depth + 1)
        ]
        if has_config and not any(spot.has_weights for spot in below):
            return self._one(folder, None, has_weights=False)
        return below

    def _one(self, folder: Path, repository: str | None, *, has_weights: bool) -> list[_Spot]:
        self._models_left -= 1
        return [_Spot(folder, repository, has_weights)]

    def _is_looked_into(self, entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith(_OTHER_PREFIXES) or not _is_encodable(entry.name):
            return False
        if self._in_cache and entry.name.startswith(_PREFIX):
            # A repository of which no folder is left can be removed.
            return _repository_in(Path(entry.path)) is not None
        return _is_folder(entry)


def _repository_in(folder: Path) -> str | None:
    """The repository whose folder in a Hugging Face cache this is, or to whose folder it leads;
    None: it is no such folder.
    """
    names = [folder.name, *([Path(os.path.realpath(folder)).name] if folder.is_symlink() else [])]
    for name in names:
        owner, _, rest = name.removeprefix(_PREFIX).partition("--")
        if name.startswith(_PREFIX) and owner and rest:
            return f"{owner}/{rest.replace('--', '/')}"
    return None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # The entry may be a link that leads to itself.
        return False


def _is_encodable(name: str) -> bool:
    """Whether JSON can have this file's name. JSON can't if the name isn't UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class Sizes(NamedTuple):
    """The bytes of a folder's files, whether they are there or links lead to them; the bytes that
    its removal would free, without files that have further hard links; and the bytes of these that
    belong to pulls that have not ended.
    """

    all_bytes: int
    freed_bytes: int
    part_bytes: int


def sizes(folder: Path) -> Sizes:
    file_sizes: dict[tuple[int, int], int] = {}
    freed_bytes = part_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                entry = path.lstat()
                state = path.stat() if stat.S_ISLNK(entry.st_mode) else entry
            except OSError:
                continue
            if stat.S_ISREG(state.st_mode):
                file_sizes[state.st_dev, state.st_ino] = state.st_size
            if stat.S_ISREG(entry.st_mode) and entry.st_nlink == 1:
                freed_bytes += entry.st_size
                part_bytes += entry.st_size if name.endswith(".incomplete") else 0
    return Sizes(sum(file_sizes.values()), freed_bytes, part_bytes)
