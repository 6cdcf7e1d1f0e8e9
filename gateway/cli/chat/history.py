"""What was typed in chats, across them: a file for this account alone."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from gateway.system.state_file import make_folder

# It is read whole when a chat begins.
_MOST_BYTES: Final = 1 << 20
# prompt_toolkit begins each entry with a line of its time.
_ENTRY: Final = b"\n# "


def history(path: Path) -> History:
    """That of a file; where it can't be used, of this chat alone."""
    try:
        make_folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                return InMemoryHistory()
            os.fchmod(file.fileno(), 0o600)
            if found.st_size > _MOST_BYTES:
                _shorten(path, file.read())
    except OSError:
        return InMemoryHistory()
    return _Tolerant(str(path))


def _shorten(path: Path, content: bytes) -> None:
    """Keep the newer half. Another chat may add to it meanwhile: its line is lost, not the file."""
    half = content[-_MOST_BYTES // 2 :]
    kept = half[max(0, half.find(_ENTRY)) :]
    aside = path.with_suffix(".new")
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(kept)
    aside.replace(path)


class _Tolerant(FileHistory):
    """A full disk is no reason to end a chat."""

    def store_string(self, string: str) -> None:
        # What was pasted may have halves of characters.
        with contextlib.suppress(OSError):
            super().store_string(string.encode("utf-8", "replace").decode())
