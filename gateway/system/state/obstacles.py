"""What is in a state folder that a gateway must not trust, or could not open."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_KINDS: Final = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def untrusted(folder: Path) -> str | None:
    """Why others than the gateway's own account could write there; None if they can't, or if there
    is no such folder. What is recorded there is believed: processes are ended by it.
    """
    try:
        found = folder.stat()
    except OSError:
        return None
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is no folder: move it away"
    if found.st_uid != os.geteuid():
        return (
            f"{folder} belongs to uid {found.st_uid} and the gateway runs as uid {os.geteuid()}: "
            "choose another folder, or give it to this account with chown"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        return f"others may write to {folder} (its mode is {mode:04o}): `chmod go-w` it"
    return None


def no_files(paths: Iterable[Path]) -> Iterator[str]:
    """Which of these are there and are no files, which reading would wait for, or fail on."""
    for path in paths:
        try:
            mode = path.stat().st_mode
        except OSError:
            continue
        if not stat.S_ISREG(mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "something else")
            yield f"{path} is {kind} where a file belongs: remove it"
