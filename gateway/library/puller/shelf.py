"""A folder of models instead of the hub: a disk that somebody carries, or a share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gateway.library.hub.messages import PullError
from gateway.library.hub.reference import Reference
from gateway.library.puller.digests import new_digest
from gateway.library.puller.source import Body, Listing, MissingError, RemoteFile, TroubleError
from gateway.system.nearest import alike

_CHUNK_BYTES: Final = 1 << 20
# The hub keeps larger files in its store of large files, by their SHA-256.
_LARGE_BYTES: Final = 10 << 20
_SHA1_DIGITS: Final = 40


class Shelf:
    """Has models as `OWNER/NAME`, or as a Hugging Face cache has them.

    What it copies is compared with what it read before: a disk may be wrong as well as a network.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def listing(self, repository: str) -> Listing:
        folder, commit = self._find(repository)
        try:
            paths = sorted(each for each in folder.rglob("*") if each.is_file())
            files = tuple(_listed(folder, each) for each in paths)
        except OSError as error:
            raise TroubleError(f"{folder} can't be read: {error.strerror}") from error
        if commit is None:
            # Of what is in it: the same files are the same revision.
            lines = "".join(f"{each.digest} {each.name}\n" for each in files)
            commit = hashlib.sha1(lines.encode(), usedforsecurity=False).hexdigest()
        return Listing(repository, commit, files, {})

    def alike(self, reference: Reference) -> list[str]:
        try:
            return alike(reference.repository, self._repositories())
        except OSError:
            # Not to be found has been told of already: this was to be more helpful.
            return []

    @contextmanager
    def read(self, listing: Listing, file: RemoteFile, begin: int) -> Iterator[Body]:
        folder, _ = self._find(listing.repository)
        try:
            with (folder / file.name).open("rb") as opened:
                opened.seek(begin)
                yield Body(begin, iter(lambda: opened.read(_CHUNK_BYTES), b""))
        except FileNotFoundError as error:
            raise TroubleError(f"{file.name} is gone from {folder}") from error

    def _repositories(self) -> list[str]:
        """In either form. Raises: OSError."""
        plain = [f"{each.parent.name}/{each.name}" for each in self._folder.glob("[!.]*/[!.]*/")]
        cached = [each.name.split("--", 2)[1:] for each in self._folder.glob("models--*--*/")]
        inside = (each for each in plain if not each.startswith("models--"))
        return sorted((*inside, *map("/".join, cached)))

    def _find(self, repository: str) -> tuple[Path, str | None]:
        """The folder, and the commit that it is of where that is known.

        Raises: MissingError, PullError.
        """
        if not self._folder.is_dir():
            raise PullError(
                "offline", f"There is no folder {self._folder}, which hub.folder names: mount it?"
            )
        plain = self._folder / repository
        if plain.is_dir():
            return plain, None
        cached = self._folder / f"models--{repository.replace('/', '--')}"
        try:
            commit = (cached / "refs" / "main").read_text("ascii").strip()
        except (OSError, ValueError):
            commit = ""
        if len(commit) == _SHA1_DIGITS and (snapshot := cached / "snapshots" / commit).is_dir():
            return snapshot, commit
        raise MissingError("not_found", f"There is no model {repository} in {self._folder}.")


def _listed(folder: Path, path: Path) -> RemoteFile:
    size_bytes = path.stat().st_size
    large = size_bytes > _LARGE_BYTES or path.suffix == ".safetensors"
    digest = new_digest("0" * (64 if large else _SHA1_DIGITS), size_bytes)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return RemoteFile(path.relative_to(folder).as_posix(), size_bytes, digest.hexdigest())
