"""The pictures of a sequence as a model takes them in, and why it can't."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class PictureInputs:
    """`arrays` are numpy's, or what else mlx-vlm's model takes, by name. They belong to a prompt of
    so many tokens. `digest` names the pictures by what they are.
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
