"""Looking for models in folders, within bounds."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from gateway.config.models import expand_home, find_folder, hugging_face_cache
from gateway.config.settings import HUGGING_FACE
from gateway.library.description import NOTHING, Description, describe

_DEEPEST: Final = 3
_MOST_FOLDERS: Final = 20_000
_MOST_MODELS: Final = 1_000
_PREFIX: Final = "models--"


class Found(Struct, frozen=True):
    """A model on a disk. `source` is what a worker loads: a repository or an absolute folder.
    `path` is what holds it, `size_bytes` what its files take, `part_bytes` what of them is from a
    pull that has not ended.
    """

    source: str
    path: str
    size_bytes: int
    part_bytes: int
    description: Description

    @property
    def cached(self) -> bool:
        """It is in the Hugging Face cache."""
        return not self.source.startswith("/")

    @property
    def name(self) -> str:
        return self.source.rpartition("/")[2]


def search(place: str) -> list[Found]:
    """The models in a folder, or in the Hugging Face cache; blocks.

    Raises OSError.
    """
    if place == HUGGING_FACE:
        return list(_cached(hugging_face_cache()))
    root = expand_home(place)
    return [_in_folder(each) for each in _folders(root)]


def _cached(cache: Path) -> Iterator[Found]:
    if not cache.is_dir():
        return
    names = sorted(each.name for each in cache.iterdir() if each.name.startswith(_PREFIX))
    for name in names[:_MOST_MODELS]:
        owner, _, rest = name.removeprefix(_PREFIX).partition("--")
        if owner and rest and _can_be_told(name):
            yield _repository(cache / name, f"{owner}/{rest.replace('--', '/')}")


def _repository(folder: Path, source: str) -> Found:
    size_bytes, part_bytes = sizes(folder)
    try:
        description = describe(find_folder(source))
    except OSError:
        description = msgspec.structs.replace(NOTHING, problem="it is not whole: pull it to go on")
    return Found(source, str(folder), size_bytes, part_bytes, description)


def _in_folder(folder: Path) -> Found:
    size_bytes, part_bytes = sizes(folder)
    return Found(str(folder.resolve()), str(folder), size_bytes, part_bytes, describe(folder))


def _folders(root: Path) -> Iterator[Path]:
    """Those with a config.json. What is in them is theirs: nobody looks further."""
    waiting = [(root, 0)]
    looked = found = 0
    while waiting and looked < _MOST_FOLDERS and found < _MOST_MODELS:
        folder, depth = waiting.pop()
        looked += 1
        if os.path.isfile(folder / "config.json"):  # noqa: PTH113 - this one never raises.
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
        # A link that leads to itself.
        return False


def _can_be_told(name: str) -> bool:
    """JSON has no place for names in other encodings."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def sizes(folder: Path) -> tuple[int, int]:
    """Bytes that would be free without it, and of these those of pulls that have not ended. Links
    take nothing, and neither does a file that has other names.
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
