"""Reads the pictures of requests, beside the event loop and within bounds."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gateway.api.bodies import beside_the_loop
from gateway.config.settings import GatewaySettings
from gateway.dispatch.refusal import Refusal
from gateway.model.model import Model
from gateway.pictures import data_url, files
from gateway.pictures.source import PictureError, Source, check_kind, refused
from gateway.system.lane import HangsError, Lane
from protocol.pictures import MOST_BYTES, MOST_PICTURES

if TYPE_CHECKING:
    from gateway.pictures.remote import Remote

_REMOTE_SCHEMES: Final = ("http:", "https:")
# For all pictures of a request, one after the other.
_FETCHED_S: Final = 20.0
# Of all requests that are not at their end: a body of some bytes may name a picture of megabytes.
_MOST_HELD_BYTES: Final = 1 << 30
_RETRY_AFTER_S: Final = 10


class PictureReader:
    """`held_bytes` are those of all pictures whose requests are still there."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self._remote: Remote | None = None
        self._files = Lane("picture files")

    async def read(self, sources: Sequence[Source], settings: GatewaySettings) -> list[bytes]:
        """The files' bytes, in order.

        Raises:
            Refusal: one of them can't be had, or they are too many or too large.
        """
        if not sources:
            return []
        if len(sources) > MOST_PICTURES:
            source = sources[MOST_PICTURES]
            raise refused(source, f"a request may have {MOST_PICTURES} pictures, no more")
        if self.held_bytes > _MOST_HELD_BYTES:
            raise Refusal(
                "overloaded",
                "Requests with pictures hold all the memory that there is for these: try again "
                "later.",
                retry_after_s=_RETRY_AFTER_S,
            )
        found: list[bytes] = []
        deadline = asyncio.get_running_loop().time() + _FETCHED_S
        for source in sources:
            left_bytes = MOST_BYTES - sum(map(len, found))
            left_s = max(0.0, deadline - asyncio.get_running_loop().time())
            try:
                data = await self._read(source.url, settings, left_bytes, left_s)
                check_kind(data)
            except PictureError as error:
                raise refused(source, error) from error
            found.append(data)
        return found

    def hold(self, pictures: Sequence[bytes], holders: Sequence[object]) -> None:
        """Count them as long as these are there, requests or what they are made for."""
        held_bytes = sum(map(len, pictures))
        if held_bytes:
            self.held_bytes += held_bytes
            # They share the bytes, and mostly the end.
            weakref.finalize(holders[0], self._let_go, held_bytes).atexit = False

    def _let_go(self, held_bytes: int) -> None:
        self.held_bytes -= held_bytes

    async def _read(
        self, url: str, settings: GatewaySettings, most_bytes: int, deadline_s: float
    ) -> bytes:
        scheme = url[: url.find(":") + 1].lower()
        if scheme == data_url.SCHEME:
            return await beside_the_loop(len(url), data_url.read_data_url, url, most_bytes)
        if scheme in _REMOTE_SCHEMES:
            if not settings.remote_images:
                raise PictureError(
                    "pictures of other machines are not fetched here: send the picture itself, as "
                    "a data URL, or set gateway.remote_images"
                )
            if self._remote is None:
                # An HTTP client is a tenth of a second to import, and few need one.
                from gateway.pictures.remote import Remote

                self._remote = Remote()
            return await self._remote.fetch(url, most_bytes, deadline_s)
        if scheme not in ("", files.SCHEME) and not url.startswith("/"):
            raise PictureError("send a data URL, as data:image/png;base64,iVBOR...")
        path = files.path_in(url)
        if not settings.image_folders:
            raise PictureError("no folder's files may be read: gateway.image_folders names none")
        folders = settings.image_folders
        try:
            return await self._files.run(
                lambda: files.read_file(path, folders, most_bytes), deadline_s, "its disk"
            )
        except HangsError as error:
            raise PictureError(str(error)) from error


def check_pictures(sources: Sequence[Source], model: Model) -> None:
    """Raises: Refusal: there are some, and the model is not one to look at them."""
    if sources and not model.settings.pictures:
        raise refused(
            sources[0],
            f"{model.id!r} was not told to look at pictures: set pictures = true for it, if it is "
            "a model that can, and install what it takes: pip install 'mlx-bulkhead[vision]'",
        )
