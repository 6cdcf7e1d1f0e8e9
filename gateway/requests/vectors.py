"""The vectors of a request, as they come from its worker."""

from __future__ import annotations

from typing import Final

from protocol.answers import Embedded
from protocol.prompts import TextPrompt
from protocol.requests import Embed
from protocol.tokens import BYTES_PER_TOKEN

BYTES_PER_NUMBER: Final = 4
# English, with vocabularies of today.
_CHARACTERS_PER_TOKEN: Final = 4
# No model has longer vectors.
_MOST_DIMENSIONS: Final = 1 << 16


class ImplausibleError(Exception):
    """They can't be what was asked for; the text says why."""


class Vectors:
    """`data` has `dimensions` numbers of each input, in their order, packed as the worker sent
    them; their prompts had so many `tokens`.
    """

    def __init__(self, inputs: int) -> None:
        self.data = bytearray()
        self.dimensions = 0
        self.tokens = 0
        self._inputs = inputs

    def begin(self) -> None:
        """Another worker makes them all anew."""
        self.data.clear()
        self.dimensions = self.tokens = 0

    def take(self, part: Embedded) -> None:
        """Raises: ImplausibleError."""
        if not 0 < part.dimensions <= _MOST_DIMENSIONS or part.tokens < 0:
            raise ImplausibleError(f"it sent vectors of {part.dimensions} numbers")
        if self.data and part.dimensions != self.dimensions:
            raise ImplausibleError("it sent vectors of several lengths for one request")
        self.dimensions = part.dimensions
        self.data += part.vectors
        self.tokens += part.tokens
        whole = self._inputs * part.dimensions * BYTES_PER_NUMBER
        if len(self.data) > whole or (part.last and len(self.data) < whole):
            raise ImplausibleError(
                f"it sent {len(self.data)} bytes of vectors for one request, of {whole}"
            )

    def __getitem__(self, index: int) -> bytes:
        """The vector of one input."""
        size = self.dimensions * BYTES_PER_NUMBER
        return bytes(self.data[index * size : (index + 1) * size])


def likely_tokens(task: Embed) -> int:
    """What its inputs come to, about: the worker alone counts, and tells it with the vectors."""
    query = 0 if task.query is None else len(task.query)
    return sum(
        1 + (len(each.text) + query) // _CHARACTERS_PER_TOKEN
        if isinstance(each, TextPrompt)
        else len(each.token_ids) // BYTES_PER_TOKEN
        for each in task.inputs
    )
