from __future__ import annotations

import pytest

from gateway.cli.client import ServerSentEvent, server_sent_events

STREAM = (
    b": waiting\n\n"
    b'data: {"text":"a\xe2\x80\xa8b\xc2\x85"}\n\n'
    b"data:one\r\ndata: two\r\n\r\n"
    b"event: error\ndata: gone\n\n"
    b"retry: 3\n\n"
    b"data: cut off"
)
EVENTS = [
    ServerSentEvent("comment", "waiting"),
    ServerSentEvent("message", '{"text":"a\u2028b\x85"}'),
    ServerSentEvent("message", "one\ntwo"),
    ServerSentEvent("error", "gone"),
]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_reads_events_however_they_are_cut(size: int) -> None:
    chunks = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert list(server_sent_events(chunks)) == EVENTS
