"""Which disk a path is on, by where systems mount the ones that come and go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

# With how many names below it make a disk's folder: Linux has one for each account.
_PARENTS: Final = ((Path("/Volumes"), 1), (Path("/media"), 2), (Path("/run/media"), 2))


class AwayError(ValueError):
    """A disk isn't mounted; the text is a sentence that says what to do."""

    def __init__(self, volume: Path) -> None:
        super().__init__(
            f"The disk {volume} isn't mounted: connect it, or unlock it; the model can be loaded "
            "as soon as it is there."
        )
        self.volume = volume


def volume_of(path: Path) -> Path | None:
    """The folder that the disk is mounted at; None for what is on the machine's own."""
    for parent, names in _PARENTS:
        if path.is_relative_to(parent) and len(parts := path.relative_to(parent).parts) > names:
            return parent.joinpath(*parts[:names])
    return None


def is_mounted(volume: Path) -> bool:
    """Blocks as long as the disk takes. macOS has a link for the one that it was started from, and
    leaves a folder now and then where a disk was.
    """
    if os.path.islink(volume):  # noqa: PTH114 - unlike Path's, these never raise.
        return os.path.exists(volume)  # noqa: PTH110
    return os.path.ismount(volume)


def away(path: Path) -> AwayError | None:
    """Why there is nothing at a path: its disk isn't there. None: it is, or it was none."""
    volume = volume_of(path)
    if volume is None or os.path.lexists(path) or is_mounted(volume):
        return None
    return AwayError(volume)
