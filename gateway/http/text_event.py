"""Events of a stream that differ by one text alone."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

import msgspec

# Nothing else in an event can be this.
_MARK: Final = secrets.token_hex(16)

_encode = msgspec.json.Encoder().encode


class TextEvent:
    """Encodes the rest of them once. Most events of a stream are one text, and to build and encode
    the object around it takes ten times as long as the text does.
    """

    def __init__(self, event: Callable[[str], bytes]) -> None:
        """`event` makes one of a text."""
        self._before, self._after = event(_MARK).split(_encode(_MARK))

    def __call__(self, text: str) -> bytes:
        return self._before + _encode(text) + self._after
