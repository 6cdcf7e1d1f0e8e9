"""Templates that come along, and files written whole, for the account that they are for."""

from __future__ import annotations

import os
from pathlib import Path

from gateway.service.failure import ServiceError
from gateway.service.owner import Owner


def template(name: str) -> bytes:
    """A file of deploy/."""
    return Path(__file__).with_name(name).read_bytes()


class Draft:
    """A file that is written already, and takes its place later, whole."""

    def __init__(self, path: Path, content: bytes) -> None:
        """Raises: ServiceError if it can't be written."""
        self._path = path
        self._draft = path.with_name(f".{path.name}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._draft.write_bytes(content)
            self._draft.chmod(0o644)
        except OSError as error:
            raise ServiceError(f"{path} can't be written: {error.strerror}.") from error

    def put(self) -> None:
        """Raises: ServiceError if it can't take its place."""
        try:
            self._draft.replace(self._path)
        except OSError as error:
            raise ServiceError(f"{self._path} can't be written: {error.strerror}.") from error

    def discard(self) -> None:
        """Unless it has taken its place."""
        self._draft.unlink(missing_ok=True)


def make_private_folder(path: Path, owner: Owner) -> None:
    """With what is missing above it: the account's own, also if root makes it.

    Raises:
        ServiceError: it can't be made.
    """
    try:
        for folder in reversed([each for each in (path, *path.parents) if not each.exists()]):
            folder.mkdir(mode=0o700)
            os.chown(folder, owner.uid, owner.gid)
    except OSError as error:
        raise ServiceError(f"The folder {path} can't be made: {error.strerror}.") from error


def make_private_file(path: Path, owner: Owner) -> None:
    """Empty, unless it is there; the account's own.

    Raises:
        ServiceError: it can't be made.
    """
    try:
        if not path.exists():
            path.touch(mode=0o600)
            os.chown(path, owner.uid, owner.gid)
    except OSError as error:
        raise ServiceError(f"{path} can't be made: {error.strerror}.") from error
