"""Pictures that a body brings itself (RFC 2397)."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from gateway.http.pictures.source import PictureError

SCHEME: Final = "data:"
_ENCODING: Final = ";base64"


def read_data_url(url: str, most_bytes: int) -> bytes:
    """Raises: PictureError: it is none, or too large."""
    head, comma, encoded = url.partition(",")
    if not comma or not head.lower().endswith(_ENCODING):
        raise PictureError("a data URL must be in base64, as data:image/png;base64,iVBOR...")
    if len(encoded) // 4 * 3 > most_bytes + 2:
        raise PictureError(f"it is too large: {most_bytes >> 20} MiB is the most")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PictureError(f"its base64 can't be read: {error}") from error
