"""What may stand where something else was sent."""

from __future__ import annotations

import pytest

from gateway.http.anthropic.messages import MessagesBody
from gateway.http.openai.chat import ChatBody
from gateway.http.wire.bodies import allowed_values


@pytest.mark.parametrize(
    ("kind", "path", "expected"),
    [
        (ChatBody, "messages[0].role", "'assistant', 'developer', 'system', 'tool', 'user'"),
        (ChatBody, "tools[3].type", "'function'"),
        (
            ChatBody,
            "reasoning_effort",
            "'high', 'low', 'max', 'medium', 'minimal', 'none', 'xhigh'",
        ),
        (MessagesBody, "thinking.type", "'adaptive', 'disabled', 'enabled'"),
        (ChatBody, "seed", ""),
        (ChatBody, "nothing.of[0].it", ""),
    ],
)
def test_values(kind: type, path: str, expected: str) -> None:
    assert ", ".join(sorted(allowed_values(kind, path).split(", "))) == expected
