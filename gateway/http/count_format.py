"""An answer of one object that is made of token counts alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.requests.choices import Choice
from gateway.requests.request import Piece
from protocol.answers import Usage


class CountFormat:
    """Of a stream the object is the only line."""

    def __init__(self, written: Callable[[Usage], bytes]) -> None:
        self._written = written

    def opening(self, index: int) -> bytes:
        return b""

    def piece(self, index: int, piece: Piece) -> bytes:
        return b""

    def closing(self, usage: Usage) -> bytes:
        return self._written(usage) + b"\n"

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return self._written(usage)
