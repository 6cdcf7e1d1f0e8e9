"""The events of streams that are passed on."""

from __future__ import annotations

import pytest

from gateway.http.passing.events import EventsWithoutUsage, WholeEvents
from gateway.http.wire.answer import EVENTS, LINES, Framing


@pytest.mark.parametrize(
    ("framing", "end"), [(EVENTS, b"\r\n\r\n"), (EVENTS, b"\n\n"), (LINES, b"\n")]
)
def test_unfinished_event_is_held_back(framing: Framing, end: bytes) -> None:
    events = WholeEvents(framing)
    assert events.add(b"data: 1") == b""
    assert events.add(end + b"data") == b"data: 1" + end
    assert events.rest == b"data"


@pytest.mark.parametrize("size", [1, 10, 1000])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_event_with_usage_alone_is_left_out(size: int, end: bytes) -> None:
    usage = b'"usage":{"prompt_tokens":1,"completion_tokens":2}'
    others = [
        b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}',
        b'data: {"choices":[],"usage":null}',
        b'data: {"choices":[{"delta":{}}],' + usage + b"}",
        b": a comment",
        b'event: error\ndata: {"choices":[],' + usage + b"}",
        b"data: [DONE]",
    ]
    left_out = b'data: {"choices": [], ' + usage + b"}"
    text = end.join([*others[:-1], left_out, others[-1], b""])
    events = EventsWithoutUsage(EVENTS)
    passed = b"".join(events.add(text[begin : begin + size]) for begin in range(0, len(text), size))
    assert passed + events.rest == end.join([*others, b""])
