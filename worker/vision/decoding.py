"""Pictures from their files' bytes: measured before they are decoded, and decoded within bounds."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Final

from PIL import Image, ImageOps

from protocol.requests import (
    MOST_PIXELS,
    MOST_SEEN_PIXELS,
    Picture,
)
from worker.vision.inputs import UndecodablePictureError

# Pillow knows many more; some of them start other programs, as Ghostscript.
_FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF")
_OPAQUE: Final = "RGB"
_PAPER: Final = (255, 255, 255)


def decode_pictures(pictures: Sequence[Picture]) -> list[Image.Image]:
    """As RGB, upright, no larger than is looked at, and the first frame of those that move. What is
    transparent lies on white.

    No pixel is decoded before the headers of all have said how many there are.

    Raises:
        PictureError: one can't be decoded, or they have too many pixels.
    """
    opened = [_open(number, each) for number, each in enumerate(pictures)]
    pixels = 0
    for number, image in enumerate(opened):
        pixels += image.width * image.height
        if pixels > MOST_PIXELS:
            before = " with those before it" if number else ""
            raise UndecodablePictureError(
                number,
                f"it has {image.width} x {image.height} pixels,{before} {pixels:,} in all, and "
                f"{MOST_PIXELS:,} is the most: send a smaller one",
            )
    return [_decode(number, image) for number, image in enumerate(opened)]


def _open(number: int, picture: Picture) -> Image.Image:
    try:
        return Image.open(io.BytesIO(picture.data), formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise UndecodablePictureError(
            number, f"it has too many pixels: {MOST_PIXELS:,} is the most"
        ) from error
    except Exception as error:
        # Each format fails on broken files in its own ways.
        raise UndecodablePictureError(
            number, "it is no PNG, JPEG, WebP or GIF, or is broken"
        ) from error


def _seen(size: tuple[int, int]) -> tuple[int, int]:
    width, height = size
    shrunk = min(1.0, math.sqrt(MOST_SEEN_PIXELS / (width * height)))
    return max(1, int(width * shrunk)), max(1, int(height * shrunk))


def _opaque(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image.convert(_OPAQUE)
    layered = image.convert("RGBA")
    paper = Image.new(_OPAQUE, layered.size, _PAPER)
    paper.paste(layered, mask=layered)
    return paper


def _decode(number: int, image: Image.Image) -> Image.Image:
    try:
        # JPEG can be decoded at a part of its size.
        image.draft(None, _seen(image.size))
        image.load()
        upright = _opaque(ImageOps.exif_transpose(image))
        upright.thumbnail(_seen(upright.size))
        return upright
    except Exception as error:
        raise UndecodablePictureError(number, f"it can't be decoded: {error}") from error
