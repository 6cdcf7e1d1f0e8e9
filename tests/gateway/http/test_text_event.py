"""Events that are encoded but for their text."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.http.wire.answer import TextEvents


@pytest.mark.parametrize("text", ["", "plain", '"quoted" \\ and\nbroken', "\u2028 \x00 \U0001f600"])
def test_an_event_is_what_encoding_all_of_it_would_make(text: str) -> None:
    request: Any = SimpleNamespace(progress=SimpleNamespace(fingerprint=None))

    def event(mark: str) -> bytes:
        return b"data: %s\n\n" % json.dumps({"a": [mark], "b": 1}).encode()

    written = TextEvents(request).write(0, text, event)
    assert b"\n" not in written[:-2]
    assert json.loads(written.removeprefix(b"data: ")) == {"a": [text], "b": 1}
