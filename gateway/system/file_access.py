"""Why a file can't be reached: its disk isn't mounted, or the system denies it.

macOS denies a program some files although their permissions allow access: for folders such as
Desktop and for every removable disk a user must agree on the screen. Without that agreement a
program that launchd starts gets EPERM. A lack of permissions gives EACCES.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

# Folders in which disks are mounted, and how many further names lead to a disk: on Linux such a
# folder may have a folder for each account.
_PARENTS: Final = ((Path("/Volumes"), 1), (Path("/media"), 2), (Path("/run/media"), 2))


class AwayError(ValueError):
    """A disk isn't mounted. The text is a sentence that says what to do."""

    def __init__(self, volume: Path) -> None:
        super().__init__(
            f"The disk {volume} isn't mounted: connect it, or unlock it; the model can be loaded "
            "as soon as it is there."
        )
        self.volume = volume


def volume_of(path: Path) -> Path | None:
    """The folder at which the disk of a path is mounted; None for the machine's own disk."""
    for parent, names in _PARENTS:
        if path.is_relative_to(parent) and len(parts := path.relative_to(parent).parts) > names:
            return parent.joinpath(*parts[:names])
    return None


def is_mounted(volume: Path) -> bool:
    """Whether a disk is mounted at `volume`. Blocks until the disk answers. In /Volumes macOS has a
    link for its start disk, and sometimes leaves a folder where a disk was.
    """
    if os.path.islink(volume):  # noqa: PTH114 - Path.is_symlink can raise.
        return os.path.exists(volume)  # noqa: PTH110
    return os.path.ismount(volume)


def away(path: Path) -> AwayError | None:
    """The error for a missing path whose disk isn't mounted; None for any other path."""
    volume = volume_of(path)
    if volume is None or os.path.lexists(path) or is_mounted(volume):
        return None
    return AwayError(volume)


class DeniedError(ValueError):
    """The system denies this program some files. The text is a sentence that says what to do."""


def denied(error: BaseException) -> str | None:
    """A sentence that says what to do if the system denied a file; None for another error."""
    for exception in _chain(error):
        if isinstance(exception, OSError) and exception.errno == errno.EPERM:
            return _sentence(exception.filename)
    return None


def is_denied(path: str | os.PathLike[str]) -> bool:
    """Whether the system denies this program even the status of the path."""
    try:
        os.stat(path)  # noqa: PTH116 - Path.stat raises the same errors.
    except (OSError, ValueError) as error:
        return denied(error) is not None
    return False


def _sentence(path: object) -> str:
    return (
        f"The system keeps {path or 'its files'} from this program, although permissions allow it "
        "(operation not permitted). On macOS: System Settings, Privacy & Security, Full Disk "
        f"Access, add {program()}, then `bulkhead service restart`."
    )


def program() -> str:
    """The file of the program that this process runs, which is what macOS's privacy settings list.
    A framework build of Python runs its Resources/Python.app instead of `sys.executable`.
    """
    try:
        return psutil.Process().exe() or os.path.realpath(sys.executable)
    except psutil.Error:
        return os.path.realpath(sys.executable)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
