"""Pictures of a prompt, and the bounds that both sides keep to."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

# Encoded, all of one request: what a body of 32 MiB can hold in base64. With the texts it is within
# one frame.
MOST_BYTES: Final = 24 << 20
MOST_PICTURES: Final = 64
# As their headers say, all of one request; the largest sensors of telephones have 50 million.
MOST_PIXELS: Final = 64_000_000
# Of one picture, as a model gets it: larger ones are made smaller. OpenAI does so, too.
MOST_SEEN_PIXELS: Final = 2048 * 2048


class Picture(Struct, frozen=True):
    """A file's bytes, before so many characters of its message's text. `name` is where its client
    has put it, for errors.
    """

    data: bytes
    at: int
    name: str
