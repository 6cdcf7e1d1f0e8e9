"""An answer that says how many tokens a prompt has, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from gateway.http.answer import Choice
from gateway.requests.request import Piece
from protocol.answers import Usage


class CountFormat:
    """It is never streamed."""

    def __init__(self, body: Callable[[int], Struct]) -> None:
        """`body` is what an API makes of the number."""
        self._body = body

    def opening(self, index: int) -> bytes:
        return b""

    def piece(self, index: int, piece: Piece) -> bytes:
        return b""

    def closing(self, usage: Usage) -> bytes:
        return b""

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return msgspec.json.encode(self._body(usage.prompt_tokens))
