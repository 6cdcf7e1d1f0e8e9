"""Conversations with pictures to token ids and arrays, by the model's own processor."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx
import numpy as np
from mlx_vlm.prompt_utils import MODEL_CONFIG, get_message_json
from mlx_vlm.utils import prepare_inputs, should_add_special_tokens

from protocol.pictures import Picture
from protocol.prompts import ChatMessage
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
        if self._kind not in MODEL_CONFIG or message.tool_calls or message.role == "tool":
            return plain
        written = get_message_json(
            self._kind,
            plain,
            message.role,
            skip_image_token=not message.pictures,
            num_images=len(message.pictures),
        )
        return written["content"] if isinstance(written, dict) else written

    def inputs(self, text: str, pictures: Sequence[Picture]) -> tuple[list[int], PictureInputs]:
        """Token ids of a rendered conversation, and what goes with them.

        Raises:
            PictureError: one of the pictures can't be decoded.
            UnusablePicturesError: the model can't do with them.
        """
        images = decode_pictures(pictures)
        try:
            made = prepare_inputs(
                self._processor,
                images=images,
                prompts=text,
                image_token_index=self._config.get("image_token_index"),
                add_special_tokens=should_add_special_tokens(self._kind, self._processor),
            )
        except Exception as error:
            # Each processor fails in its own ways on a shape or a number that it doesn't take.
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
