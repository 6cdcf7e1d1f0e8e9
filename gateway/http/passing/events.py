"""The events of streams that pass."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw, Struct

from gateway.http.passing.usage import USAGE
from gateway.http.wire.answer import LINES, Framing
from gateway.http.wire.bodies import NOT_GIVEN, given

_MOST_HELD_BYTES: Final = 64 << 10
# The last event of a stream of OpenAI's and of Anthropic's APIs. Within a text, quotes and the ends
# of lines would be escaped.
LAST: Final = re.compile(
    rb'^data: ?(?:\[DONE\]|\{"error"|.*"type": ?"(?:error|message_stop|'
    rb"response\.(?:completed|failed|incomplete)|(?:speech\.audio|transcript\.text)\.done|"
    rb'image_(?:generation|edit)\.completed)")',
    re.MULTILINE,
)
# What a stream says to pass the time.
COMMENTS: Final = re.compile(rb"(?::[^\r\n]*|[ \r\n])*")


class WholeEvents:
    """Holds an unfinished event of a stream back, so that an error that takes the place of the rest
    stands alone.
    """

    def __init__(self, framing: Framing) -> None:
        self.rest = b""
        # An empty line ends an event; a line of JSON is one.
        self._ends = (b"\n",) if framing is LINES else (b"\n\n", b"\r\n\r\n")

    def add(self, piece: bytes) -> bytes:
        """The bytes to pass on now."""
        piece = self.rest + piece
        end = max(
            found + len(each) if (found := piece.rfind(each)) >= 0 else 0 for each in self._ends
        )
        if len(piece) - end > _MOST_HELD_BYTES:
            end = len(piece)
        self.rest = piece[end:]
        return piece[:end]


class _Chunk(Struct):
    choices: list[Raw] | None = None
    usage: Raw = NOT_GIVEN


_DATA: Final = b"data:"


class EventsWithoutUsage(WholeEvents):
    """Leaves the event with the usage out, which the client hasn't asked for. Such clients take the
    first of an event's choices, and this event has none.
    """

    def add(self, piece: bytes) -> bytes:
        whole = super().add(piece)
        if USAGE not in whole:
            return whole
        return b"".join(each for each in _EVENT.findall(whole) if not _is_usage(each))


_EVENT: Final = re.compile(rb".+?(?:\r?\n\r?\n|\Z)", re.DOTALL)


def _is_usage(event: bytes) -> bool:
    if not event.startswith(_DATA):
        return False
    try:
        chunk = msgspec.json.decode(event[len(_DATA) :], type=_Chunk)
    except msgspec.DecodeError:
        return False
    return chunk.choices == [] and given(chunk.usage)
