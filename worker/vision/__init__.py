"""Models that look at pictures, by mlx-vlm.

mlx-vlm and Pillow are optional dependencies. So other rooms import the files of this room only for
a model that needs them. The types in this file import neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class PictureInputs:
    """The pictures of a sequence, as the inputs of its model. `arrays` are numpy's arrays, or other
    values of mlx-vlm, by name. They belong to a prompt of `prompt_tokens` tokens. `digest` is a
    hash of the pictures' files.
    """

    arrays: Mapping[str, Any]
    prompt_tokens: int
    digest: str

    def salt(self, salt: str) -> str:
        """A salt for names of cached prompts, so that only prompts with the same pictures share."""
        return f"{self.digest} {salt}"


class UndecodablePictureError(Exception):
    """A picture can't be decoded. `number` is its place among the request's pictures, from 0 on."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number
        self.reason = reason


class UnusablePicturesError(Exception):
    """The model can't look at these pictures, or not at so many. The text says why."""
