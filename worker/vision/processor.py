"""Conversations with pictures to token ids and arrays, by the model's own processor."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx
import numpy as np

from protocol.pictures import Picture
from protocol.prompts import ChatMessage
from worker import mlx_vlm
from worker.vision.decoding import decode_pictures
from worker.vision.errors import UnusablePicturesError
from worker.vision.inputs import PictureInputs

_DIGEST_BYTES: Final = 16
_IDS: Final = "input_ids"
_MASK: Final = "attention_mask"


class PictureProcessor:
    """Of one model."""

    def __init__(self, processor: Any, config: dict[str, Any]) -> None:
        self._processor = processor
        self._config = config
        self._kind = config["model_type"].lower()

    @property
    def chat_template(self) -> Any:
        """The processor's own, which may be the only one."""
        return getattr(self._processor, "chat_template", None)

    def content(self, message: ChatMessage) -> Any:
        """A message's content as this model wants to be shown it: the pictures are parts of a list,
        or words of the text.
        """
        plain = message.content if not message.pictures else _parts(message)
        if message.tool_calls or message.role == "tool":
            return plain
        return mlx_vlm.content(self._kind, plain, message.role, len(message.pictures))

    def inputs(self, text: str, pictures: Sequence[Picture]) -> tuple[list[int], PictureInputs]:
        """Token ids of a rendered conversation, and what goes with them.

        Raises:
            PictureError: one of the pictures can't be decoded.
            UnusablePicturesError: the model can't do with them.
        """
        images = decode_pictures(pictures)
        try:
            made = mlx_vlm.inputs(self._processor, self._config, text, images)
        except Exception as error:
            raise UnusablePicturesError(str(error)) from error
        arrays = {name: _numpy(each) for name, each in made.items() if each is not None}
        arrays.pop(_MASK, None)
        token_ids = [int(each) for each in arrays.pop(_IDS)[0]]
        return token_ids, PictureInputs(arrays, len(token_ids), _digest(pictures))


def _digest(pictures: Sequence[Picture]) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for each in pictures:
        digest.update(len(each.data).to_bytes(8, "little"))
        digest.update(each.data)
    return digest.hexdigest()


def _parts(message: ChatMessage) -> list[dict[str, str]]:
    """As Hugging Face's templates know them."""
    parts: list[dict[str, str]] = []
    done = 0
    for each in message.pictures:
        parts += _text(message.content[done : each.at])
        parts.append({"type": "image"})
        done = each.at
    return parts + _text(message.content[done:])


def _text(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}] if text else []


def _numpy(value: Any) -> Any:
    """Nothing of MLX's leaves the thread that it was made on."""
    return np.array(value) if isinstance(value, mx.array) else value
