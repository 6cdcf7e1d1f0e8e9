"""Pictures in folders that the operator has named."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from gateway.config.model_folders import expand_home
from gateway.http.pictures.source import PictureError

SCHEME: Final = "file:"
_LOCAL: Final = ("", "localhost")
# The same for what is outside and what is nowhere: nobody learns which files there are.
_NOT_THERE: Final = "there is no such file in gateway.image_folders"


def path_in(url: str) -> Path:
    """The path of a file: URL, or that which was written without a scheme.

    Raises:
        PictureError: it isn't absolute, or on another machine.
    """
    path = url
    if url.lower().startswith(SCHEME):
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise PictureError(f"it is no address: {error}") from error
        if parts.netloc.lower() not in _LOCAL:
            raise PictureError("a file: address is of this machine: write file:///folder/picture")
        path = unquote(parts.path)
    if not path.startswith("/") or "\0" in path:
        raise PictureError("it must be an absolute path")
    return Path(path)


def read_file(path: Path, folders: Sequence[str], most_bytes: int) -> bytes:
    """Read a file that lies in one of the folders, links followed; blocks.

    Raises:
        PictureError: it isn't there, is no file, or is too large.
    """
    try:
        resolved = path.resolve(strict=True)
        _check_inside(resolved, folders)
        # Neither another link that has come meanwhile, nor a pipe that nobody writes to.
        descriptor = os.open(resolved, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise PictureError("it is no regular file")
            # Nor a folder above it that has become a link.
            again = path.resolve(strict=True)
            _check_inside(again, folders)
            if not os.path.samestat(status, again.stat()):
                raise PictureError("it changed while it was read")
            data = file.read(most_bytes + 1)
    except (OSError, RuntimeError, ValueError) as error:
        # A loop of links is a RuntimeError.
        raise PictureError(_NOT_THERE) from error
    if len(data) > most_bytes:
        raise PictureError(f"it is too large: {most_bytes >> 20} MiB is the most")
    return data


def _check_inside(resolved: Path, folders: Sequence[str]) -> None:
    for each in folders:
        folder = expand_home(each)
        if folder.is_absolute() and resolved.is_relative_to(folder.resolve()):
            return
    raise PictureError(_NOT_THERE)
