"""The files of the page, in memory."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from gateway.system.lane import Lane

_FOLDER: Final = Path(__file__).parent / "static"
_READ_S: Final = 20.0
# A system's own table may know other types, and browsers run no script that has another one.
_TYPES: Final = mimetypes.MimeTypes(filenames=())
_TYPES.add_type("text/javascript", ".js")
_TYPES.add_type("text/markdown", ".md")


class File(Struct, frozen=True):
    """`etag` tells its content from another, in quotes, as HTTP has it."""

    content: bytes
    media_type: str
    etag: str


class Page:
    """Reads all files when the first is asked for. Nothing else can be found in it."""

    def __init__(self, folder: Path = _FOLDER) -> None:
        self._folder = folder
        self._files: Mapping[str, File] | None = None
        self._lane = Lane("page")

    async def find(self, path: str) -> File | None:
        """Raises: OSError: they can't be read."""
        if self._files is None:
            self._files = await self._lane.run(self._read, _READ_S, str(self._folder))
        return self._files.get(path)

    def _read(self) -> dict[str, File]:
        """Blocks."""
        paths = (each for each in self._folder.rglob("*") if each.is_file())
        return {each.relative_to(self._folder).as_posix(): _file(each) for each in paths}


def _file(path: Path) -> File:
    content = path.read_bytes()
    kind = _TYPES.guess_type(path.name)[0] or "application/octet-stream"
    return File(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
