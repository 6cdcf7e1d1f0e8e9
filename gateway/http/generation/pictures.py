"""Reads the pictures of requests, outside the event loop and within bounds."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import re
import stat
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from gateway.config.model_folders import expand_home
from gateway.config.settings import GatewaySettings
from gateway.http.wire.bodies import beside_the_loop
from gateway.http.wire.errors import PictureError, invalid
from gateway.requests.share import Share
from gateway.system.lane import HangsError, Lane
from gateway.system.refusal import Refusal
from protocol.extras import command_to_add
from protocol.requests import MOST_PICTURE_BYTES, MOST_PICTURES

_LONGEST_REASON: Final = 300
# The first bytes of PNG, GIF and JPEG files. WebP files begin with RIFF, four bytes of length, and
# WEBP.
_BEGINNINGS: Final = (b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"\xff\xd8\xff")


class Source(Struct, frozen=True):
    """The address of a picture. `name` is the path of its field in the body, for errors."""

    url: str
    name: str


def refused(source: Source, reason: object) -> Refusal:
    text = str(reason)
    if len(text) > _LONGEST_REASON:
        text = text[: _LONGEST_REASON - 1] + "…"
    return invalid(f"{source.name}: {text}.", source.name)


def check_kind(data: bytes) -> None:
    """Raises: PictureError: the data is no PNG, JPEG, WebP or GIF."""
    if not data.startswith(_BEGINNINGS) and not (data[:4] == b"RIFF" and data[8:12] == b"WEBP"):
        raise PictureError("it is no PNG, JPEG, WebP or GIF")


DATA_SCHEME: Final = "data:"
_ENCODING: Final = ";base64"


def read_data_url(url: str, most_bytes: int) -> bytes:
    """Raises: PictureError: the URL is no data URL in base64, or the picture is too large."""
    head, comma, encoded = url.partition(",")
    if not comma or not head.lower().endswith(_ENCODING):
        raise PictureError("a data URL must be in base64, as data:image/png;base64,iVBOR...")
    if len(encoded) // 4 * 3 > most_bytes + 2:
        raise PictureError(f"it is too large: {most_bytes >> 20} MiB is the most")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PictureError(f"its base64 can't be read: {error}") from error


FILE_SCHEME: Final = "file:"
_LOCAL: Final = ("", "localhost")
# One text for files outside the folders and for missing files, so that no client learns which
# files exist.
_NOT_THERE: Final = "there is no such file in gateway.image_folders"


def path_in(url: str) -> Path:
    """The path that a file: URL or a plain path names.

    Raises:
        PictureError: the path isn't absolute, or is on another machine.
    """
    path = url
    if url.lower().startswith(FILE_SCHEME):
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise PictureError(f"it is no address: {error}") from error
        if parts.netloc.lower() not in _LOCAL:
            raise PictureError("it is no file of this machine: write file:///folder/picture")
        path = unquote(parts.path)
    if not path.startswith("/") or "\0" in path:
        raise PictureError("it must be an absolute path")
    return Path(path)


def read_file(path: Path, folders: Sequence[str], most_bytes: int) -> bytes:
    """Read a file, which must be in one of the folders after its links are resolved; blocks.

    Raises:
        PictureError: the file is not in the folders, not regular, or too large, or it changed.
    """
    try:
        resolved = path.resolve(strict=True)
        _check_inside(resolved, folders)
        # Don't follow a link that was made meanwhile, and don't wait for the writer of a pipe.
        descriptor = os.open(resolved, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise PictureError("it is no regular file")
            # A folder above the file may have become a link meanwhile, too.
            again = path.resolve(strict=True)
            _check_inside(again, folders)
            if not os.path.samestat(status, again.stat()):
                raise PictureError("it changed while it was read")
            data = file.read(most_bytes + 1)
    except (OSError, RuntimeError, ValueError) as error:
        # pathlib raises RuntimeError for a loop of links.
        raise PictureError(_NOT_THERE) from error
    if len(data) > most_bytes:
        raise PictureError(f"it is too large: {most_bytes >> 20} MiB is the most")
    return data


def _check_inside(resolved: Path, folders: Sequence[str]) -> None:
    for text in folders:
        folder = expand_home(text)
        if folder.is_absolute() and resolved.is_relative_to(folder.resolve()):
            return
    raise PictureError(_NOT_THERE)


_REMOTE_SCHEMES: Final = ("http:", "https:")
# Seconds for all pictures of a request together.
_FETCHED_S: Final = 20.0


# Fetches a picture by its address, the most bytes, and the seconds in which it must have come.
Fetch: TypeAlias = Callable[[str, int, float], Awaitable[bytes]]


class PictureReader:
    def __init__(self) -> None:
        self._fetch: Fetch | None = None
        self._files = Lane("picture files")

    async def read(
        self, sources: Sequence[Source], settings: GatewaySettings, share: Share
    ) -> list[bytes]:
        """The bytes of the pictures, in order. These bytes count against `share`, since a short
        path may name megabytes.

        Raises:
            Refusal: a picture can't be read, or the pictures are too many or too large.
        """
        if not sources:
            return []
        if len(sources) > MOST_PICTURES:
            source = sources[MOST_PICTURES]
            raise refused(source, f"a request may have {MOST_PICTURES} pictures, no more")
        pictures: list[bytes] = []
        deadline = asyncio.get_running_loop().time() + _FETCHED_S
        for source in sources:
            left_bytes = MOST_PICTURE_BYTES - sum(map(len, pictures))
            left_s = max(0.0, deadline - asyncio.get_running_loop().time())
            try:
                data = await self._read(source.url, settings, left_bytes, left_s)
                check_kind(data)
            except PictureError as error:
                raise refused(source, error) from error
            share.reserve(len(data))
            pictures.append(data)
        return pictures

    async def _read(
        self, url: str, settings: GatewaySettings, most_bytes: int, deadline_s: float
    ) -> bytes:
        scheme = url[: url.find(":") + 1].lower()
        if scheme == DATA_SCHEME:
            return await beside_the_loop(len(url), read_data_url, url, most_bytes)
        if scheme in _REMOTE_SCHEMES:
            if not settings.remote_images:
                raise PictureError(
                    "this gateway fetches no pictures from other machines: send the picture as a "
                    "data URL, or set gateway.remote_images"
                )
            if self._fetch is None:
                # Importing an HTTP client takes a tenth of a second, and few installations need
                # one.
                from gateway.http.generation.remote_pictures import RemotePictures

                self._fetch = RemotePictures().fetch
            return await self._fetch(url, most_bytes, deadline_s)
        if scheme not in ("", FILE_SCHEME) and not url.startswith("/"):
            raise PictureError("send a data URL, as data:image/png;base64,iVBOR...")
        path = path_in(url)
        if not settings.image_folders:
            raise PictureError("no file may be read: gateway.image_folders names none")
        folders = settings.image_folders
        try:
            return await self._files.run(
                lambda: read_file(path, folders, most_bytes), deadline_s, "its disk"
            )
        except HangsError as error:
            raise PictureError(str(error)) from error


def not_looked_at(source: Source, model_id: str) -> Refusal:
    """The refusal of a picture for a model that takes none."""
    return refused(
        source,
        f"{model_id!r} is not configured to look at pictures: if it has vision, set pictures = "
        f"true for it, and install what looks at them: {command_to_add('vision')}",
    )


_NAME_IN_HEADER: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# The most names in a header: clients can send any number of unknown types.
_MOST_NAMED: Final = 32


def left_out_header(names: Collection[str]) -> dict[str, str]:
    """The header that names the parts of the body that the model doesn't get. The names must be
    valid in a header.
    """
    named = ", ".join(sorted(names)[:_MOST_NAMED])
    return {"x-bulkhead-left-out": named} if named else {}


def named(kind: str, otherwise: str) -> str:
    """`kind` if a header may contain it, else `otherwise`."""
    return kind if _NAME_IN_HEADER.fullmatch(kind) else otherwise
