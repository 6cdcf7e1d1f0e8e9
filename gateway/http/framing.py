"""How the events of a stream follow each other on a connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec import Struct

from gateway.http.errors import envelope
from gateway.system.refusal import Refusal


class Framing(Struct, frozen=True):
    """What is sent while an answer waits, `waiting` before its first event and `pause` behind it,
    changes nothing for who reads; `failure` is an error that ends a stream, on a path. `remark` is
    what would have been a header, had it been known.
    """

    media_type: bytes
    waiting: bytes
    pause: bytes
    failure: Callable[[Refusal, str], bytes]
    remark: Callable[[bytes, bytes], bytes]


def _error_event(refusal: Refusal, path: str) -> bytes:
    return b"event: error\ndata: " + envelope(refusal, path) + b"\n\n"


def _error_line(refusal: Refusal, path: str) -> bytes:
    return envelope(refusal, path) + b"\n"


def _remark(name: bytes, text: bytes) -> bytes:
    return b": %b: %b\n\n" % (name, text)


def _remark_line(name: bytes, text: bytes) -> bytes:
    """A field that clients pass over, in a line that adds nothing."""
    told = {name.decode(): text.decode()}
    return msgspec.json.encode({"response": "", "message": _NOTHING, "done": False} | told) + b"\n"


_NOTHING: Final = {"role": "assistant", "content": ""}
_COMMENT: Final = b": waiting\n\n"
EVENTS: Final = Framing(
    b"text/event-stream; charset=utf-8",
    waiting=_COMMENT,
    pause=_COMMENT,
    failure=_error_event,
    remark=_remark,
)
# Anthropic's own sign of life. Its clients expect none before the message has begun.
MESSAGE_EVENTS: Final = Framing(
    b"text/event-stream; charset=utf-8",
    waiting=_COMMENT,
    pause=b'event: ping\ndata: {"type":"ping"}\n\n',
    failure=_error_event,
    remark=_remark,
)
# Clients read an empty line as JSON, and fail; before a line's text spaces are nothing to JSON.
LINES: Final = Framing(
    b"application/x-ndjson",
    waiting=b" ",
    pause=b" ",
    failure=_error_line,
    remark=_remark_line,
)


def framing_of(headers: Iterable[tuple[bytes, bytes]]) -> Framing | None:
    """That of a response with these headers; None: it is no stream."""
    kind = dict(headers).get(b"content-type", b"").partition(b";")[0]
    known = {each.media_type.partition(b";")[0]: each for each in (EVENTS, LINES)}
    return known.get(kind)
