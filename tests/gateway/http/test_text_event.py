"""Events that are encoded but for their text."""

from __future__ import annotations

import json

import pytest

from gateway.http.answer import TextEvent


@pytest.mark.parametrize("text", ["", "plain", '"quoted" \\ and\nbroken', "\u2028 \x00 \U0001f600"])
def test_an_event_is_what_encoding_all_of_it_would_make(text: str) -> None:
    event = TextEvent(lambda mark: b"data: %s\n\n" % json.dumps({"a": [mark], "b": 1}).encode())
    written = event(text)
    assert b"\n" not in written[:-2]
    assert json.loads(written.removeprefix(b"data: ")) == {"a": [text], "b": 1}
