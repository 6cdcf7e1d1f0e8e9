"""Reading a stream of server-sent events (WHATWG HTML, 9.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct


class ServerSentEvent(Struct, frozen=True):
    """`kind` is the event's name, or `comment`."""

    kind: str
    data: str


def server_sent_events(chunks: Iterable[bytes]) -> Iterator[ServerSentEvent]:
    """The events and comments of a stream; an event that is cut off is left out."""
    kind, data = "message", list[str]()
    for line in _lines(chunks):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield ServerSentEvent(kind, "\n".join(data))
            kind, data = "message", []
        elif not name:
            yield ServerSentEvent("comment", value)
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines that end with a line feed.

    httpx's iter_lines would also split at the separators of str.splitlines, which may stand inside
    JSON text.
    """
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")
