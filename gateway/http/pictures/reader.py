"""Reads the pictures of requests, beside the event loop and within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gateway.config.model import Model
from gateway.config.settings import GatewaySettings
from gateway.http.bodies import beside_the_loop
from gateway.http.pictures import data_url, files
from gateway.http.pictures.source import PictureError, Source, check_kind, refused
from gateway.requests.share import Share
from gateway.system.lane import HangsError, Lane
from protocol.pictures import MOST_BYTES, MOST_PICTURES

if TYPE_CHECKING:
    from gateway.http.pictures.remote import Remote

_REMOTE_SCHEMES: Final = ("http:", "https:")
# For all pictures of a request, one after the other.
_FETCHED_S: Final = 20.0


class PictureReader:
    def __init__(self) -> None:
        self._remote: Remote | None = None
        self._files = Lane("picture files")

    async def read(
        self, sources: Sequence[Source], settings: GatewaySettings, share: Share
    ) -> list[bytes]:
        """The files' bytes, in order. `share` counts them: some bytes of a body may name a picture
        of megabytes.

        Raises:
            Refusal: one of them can't be had, or they are too many or too large.
        """
        if not sources:
            return []
        if len(sources) > MOST_PICTURES:
            source = sources[MOST_PICTURES]
            raise refused(source, f"a request may have {MOST_PICTURES} pictures, no more")
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
            share.take(len(data))
            found.append(data)
        return found

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
                from gateway.http.pictures.remote import Remote

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
