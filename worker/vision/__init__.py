"""Models that look at pictures, by mlx-vlm.

mlx-vlm and Pillow are an extra: other rooms import this one's files only for a model that needs
them. The types here are for all rooms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class PictureInputs:
    """The pictures of a sequence, as its model takes them in. `arrays` are numpy's, or other values
    of mlx-vlm, by name. They belong to a prompt of `prompt_tokens`. `digest` is a hash of the
    pictures' files.
    """

    arrays: Mapping[str, Any]
    prompt_tokens: int
    digest: str

    def salt(self, salt: str) -> str:
        """For names of prompts that are shared only where the pictures are the same, too."""
        return f"{self.digest} {salt}"


class UndecodablePictureError(Exception):
    """A picture that can't be decoded, by its number."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number
        self.reason = reason


class UnusablePicturesError(Exception):
    """The model can't look at these pictures, or not at so many; the text says why."""
