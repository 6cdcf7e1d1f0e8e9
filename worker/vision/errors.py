"""Why pictures can't be looked at."""

from __future__ import annotations


class UndecodablePictureError(Exception):
    """A picture that can't be decoded, by its number."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number
        self.reason = reason


class UnusablePicturesError(Exception):
    """The model can't look at these pictures, or not at so many; the text says why."""
