"""Token ids as bytes: long prompts travel and are kept in four bytes a token."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

LARGEST_TOKEN_ID: Final = (1 << 32) - 1
BYTES_PER_TOKEN: Final = 4
TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST_TOKEN_ID)]


def pack(token_ids: Iterable[int]) -> bytes:
    """Ids from 0 to `LARGEST_TOKEN_ID` as little-endian 32-bit words.

    Raises:
        OverflowError: an id is out of range.
    """
    return _little_endian(array("I", token_ids)).tobytes()


def unpack(packed: bytes) -> list[int]:
    """The reverse of `pack`.

    Raises:
        ValueError: the length is not a multiple of four.
    """
    words = array("I")
    words.frombytes(packed)
    return _little_endian(words).tolist()


def _little_endian(words: array[int]) -> array[int]:
    if sys.byteorder == "big":
        words.byteswap()
    return words
