"""Turns files of pictures into inputs of a model: measures, decodes and processes them."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx
import numpy as np
from PIL import Image, ImageOps

from protocol.requests import MOST_PIXELS, MOST_SEEN_PIXELS, ChatMessage, Picture
from worker import mlx_vlm
from worker.vision import PictureInputs, PictureSpan, UndecodablePictureError, UnusablePicturesError

# Pillow knows many more formats. For some it starts other programs, such as Ghostscript.
_FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF")
_OPAQUE: Final = "RGB"
_PAPER: Final = (255, 255, 255)
_DIGEST_BYTES: Final = 16
_IDS: Final = "input_ids"
_MASK: Final = "attention_mask"


class PictureProcessor:
    """Writes messages with pictures in the form of one model, and makes the model's inputs."""

    def __init__(self, processor: Any, config: dict[str, Any]) -> None:
        self._processor = processor
        self._config = config
        self._kind = config["model_type"].lower()

    def content(self, message: ChatMessage) -> Any:
        """A message's content in the form that this model's template takes: the pictures are items
        of a list, or words in the text.
        """
        plain = message.content if not message.pictures else _parts(message)
        if message.tool_calls or message.role == "tool":
            return plain
        return mlx_vlm.content(self._kind, plain, message.role, len(message.pictures))

    def inputs(self, text: str, pictures: Sequence[Picture]) -> tuple[list[int], PictureInputs]:
        """The token ids of a rendered conversation, and its pictures as the model's inputs.

        Raises:
            UndecodablePictureError: one of the pictures can't be decoded.
            UnusablePicturesError: the model can't look at these pictures.
        """
        images = decode_pictures(pictures)
        try:
            inputs = mlx_vlm.inputs(self._processor, self._config, text, images)
        except Exception as error:
            raise UnusablePicturesError(str(error)) from error
        arrays = {name: _numpy(item) for name, item in inputs.items() if item is not None}
        arrays.pop(_MASK, None)
        token_ids = [int(token_id) for token_id in arrays.pop(_IDS)[0]]
        picture_token = mlx_vlm.picture_token(self._processor, self._config)
        seen = find_pictures(token_ids, picture_token, pictures)
        return token_ids, PictureInputs(arrays, len(token_ids), seen)


def decode_pictures(pictures: Sequence[Picture]) -> list[Image.Image]:
    """Pictures as RGB: upright, of at most MOST_SEEN_PIXELS, the first frame of an animation, and
    on white where they are transparent.

    No pixel is decoded before the headers of all pictures have told the number of pixels.

    Raises:
        UndecodablePictureError: a picture can't be decoded, or all have too many pixels together.
    """
    opened = [_open(number, picture) for number, picture in enumerate(pictures)]
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
        # Each format fails in its own ways on broken files.
        raise UndecodablePictureError(
            number, "it is no PNG, JPEG, WebP or GIF, or is broken"
        ) from error


def _decode(number: int, image: Image.Image) -> Image.Image:
    try:
        # A JPEG can be decoded at a fraction of its width and height.
        image.draft(None, _seen(image.size))
        image.load()
        upright = _opaque(ImageOps.exif_transpose(image))
        upright.thumbnail(_seen(upright.size))
        return upright
    except Exception as error:
        raise UndecodablePictureError(number, f"it can't be decoded: {error}") from error


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


def find_pictures(
    token_ids: Sequence[int], picture_token: int | None, pictures: Sequence[Picture]
) -> tuple[PictureSpan, ...]:
    """The places of the pictures in a prompt. A picture's tokens are `picture_token`; None: this
    isn't known.
    """
    runs: list[list[int]] = []
    for place, token_id in enumerate(token_ids):
        if token_id != picture_token:
            continue
        if runs and runs[-1][1] == place:
            runs[-1][1] = place + 1
        else:
            runs.append([place, place + 1])
    if len(runs) != len(pictures):
        # Models that cut a picture into tiles or rows have other tokens between these.
        begin, end = (runs[0][0], runs[-1][1]) if runs else (0, len(token_ids))
        return (PictureSpan(begin, end, _digest(pictures, end - begin)),)
    return tuple(
        PictureSpan(begin, end, _digest([picture], end - begin))
        for (begin, end), picture in zip(runs, pictures, strict=True)
    )


def _digest(pictures: Sequence[Picture], tokens: int) -> bytes:
    """A hash of pictures that are seen as so many tokens. A processor may make pictures smaller if
    there are many.
    """
    digest = hashlib.blake2b(tokens.to_bytes(8, "little"), digest_size=_DIGEST_BYTES)
    for picture in pictures:
        digest.update(len(picture.data).to_bytes(8, "little"))
        digest.update(picture.data)
    return digest.digest()


def _parts(message: ChatMessage) -> list[dict[str, str]]:
    """A message's text and pictures as a list, in the form of Hugging Face's templates."""
    parts: list[dict[str, str]] = []
    done = 0
    for picture in message.pictures:
        parts += _text(message.content[done : picture.at])
        parts.append({"type": "image"})
        done = picture.at
    return parts + _text(message.content[done:])


def _text(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}] if text else []


def _numpy(value: Any) -> Any:
    """The value, as numpy's array if it is MLX's: MLX's stay on the thread that made them."""
    return np.array(value) if isinstance(value, mx.array) else value
