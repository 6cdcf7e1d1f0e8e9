"""Files that nobody but this account may read, replaced as a whole. Blocks."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

_PRIVATE: Final = 0o600


def write_secret(path: Path, content: bytes) -> None:
    """Replace it: after a crash, or a loss of power, the old or the new content is there.

    Raises OSError.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    # What an earlier process of this number has left may have any mode.
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if os.geteuid() == 0:
                # The gateway that is to read it may run as the folder's owner.
                owner = path.parent.stat()
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    _keep_name(path.parent)


def read_file(path: Path) -> bytes:
    """Raises OSError, also if others may write to it, or it is no file."""
    return _read(path, forbidden=stat.S_IWGRP | stat.S_IWOTH)


def read_secret(path: Path) -> bytes:
    """Raises OSError: PermissionError if others than this account may read it."""
    return _read(path, forbidden=stat.S_IRWXG | stat.S_IRWXO)


def _read(path: Path, forbidden: int) -> bytes:
    # Opening a named pipe would wait for somebody who writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        if found.st_mode & forbidden:
            mode = stat.S_IMODE(found.st_mode)
            raise PermissionError(
                errno.EACCES, f"others have rights to it (its mode is {mode:04o})", str(path)
            )
        return file.read()


def _keep_name(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
