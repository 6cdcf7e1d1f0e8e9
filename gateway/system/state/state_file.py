"""Small files of the state folder: written whole or not at all, and no reason to stop if broken."""

from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Struct)


def read_state(path: Path, kind: type[T]) -> T | None:
    """What was written; None if nothing was, or if it can't be read, which is logged."""
    try:
        return msgspec.json.decode(_read(path), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        logger.warning("%s is ignored: %s", path, error)
        return None


def write_state(path: Path, content: Struct) -> None:
    """Replace the file. A full disk must not keep a model from being served: it is logged."""
    unfinished = path.with_suffix(".new")
    try:
        unfinished.write_bytes(msgspec.json.encode(content))
        unfinished.replace(path)
    except OSError as error:
        logger.warning("%s can't be written: %s", path, error)


def make_folder(folder: Path) -> None:
    """Make a folder, and the one that it is in, for this account alone; somebody may have removed
    them under a running gateway.

    Raises OSError.
    """
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)


def _read(path: Path) -> bytes:
    # Opening a named pipe would wait for somebody who writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)
