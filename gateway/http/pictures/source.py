"""Where a request's picture is, and why it can't be had."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from gateway.system.refusal import Refusal

_LONGEST_REASON: Final = 300
# What the files of PNG, GIF and JPEG begin with. WebP's have RIFF, four bytes of length, and WEBP.
_BEGINNINGS: Final = (b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"\xff\xd8\xff")


class Source(Struct, frozen=True):
    """`name` is the field of the body, for errors."""

    url: str
    name: str


class PictureError(Exception):
    """Why a picture can't be had, as the end of a sentence."""


def refused(source: Source, reason: object) -> Refusal:
    text = str(reason)
    if len(text) > _LONGEST_REASON:
        text = text[: _LONGEST_REASON - 1] + "…"
    return Refusal("invalid_request_error", f"{source.name}: {text}.", param=source.name)


def check_kind(data: bytes) -> None:
    """Raises: PictureError: it is the file of something else."""
    if not data.startswith(_BEGINNINGS) and not (data[:4] == b"RIFF" and data[8:12] == b"WEBP"):
        raise PictureError("it is no PNG, JPEG, WebP or GIF")
