"""Conversations of as many items as a body can have: each is looked at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from gateway.http.generation.conversation import ConversationBuilder
from gateway.http.ollama import bodies as ollama
from gateway.http.openai.responses_conversation import converse
from gateway.http.openai.responses_items import ItemBody
from protocol.requests import ChatMessage


def _joins(call: Callable[[], object], separator: str) -> int:
    """How often texts are joined with this between them."""
    count = 0

    def count_joins(_frame: FrameType, event: str, called: Any) -> None:
        nonlocal count
        if event == "c_call" and called.__name__ == "join":
            count += called.__self__ == separator

    sys.setprofile(count_joins)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def _lines(call: Callable[[], object]) -> int:
    """How many lines of Python that runs."""
    count = 0

    def count_line(_frame: FrameType, event: str, _value: object) -> Any:
        nonlocal count
        count += event == "line"
        return count_line

    sys.settrace(count_line)
    try:
        call()
    finally:
        sys.settrace(None)
    return count


def test_system_messages_are_joined_once() -> None:
    items = [ItemBody(role="system", content=f"rule {number}") for number in range(500)]
    items.append(ItemBody(role="developer", content="the last"))
    items.append(ItemBody(role="user", content="Hello"))
    names = [f"input[{number}]" for number in range(len(items))]

    def read() -> ConversationBuilder:
        conversation = ConversationBuilder(vision=True)
        converse(None, items, names, conversation)
        return conversation

    messages = read().messages
    assert [message.role for message in messages] == ["system", "user"]
    assert messages[0].content.startswith("rule 0\n\nrule 1\n\n")
    assert messages[0].content.endswith("rule 499\n\nthe last")
    assert _joins(read, "\n\n") == 1


def test_results_find_their_calls() -> None:
    """Also where there is none of their tool, and where the last call is answered first."""

    def conversation(count: int) -> list[ollama.OllamaMessageBody]:
        call = ollama.msgspec.json.decode(
            b'{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}',
            type=ollama.OllamaMessageBody,
        )
        last_first = [
            ollama.OllamaMessageBody(role="tool", content="x", tool_call_id=f"call_{number}")
            for number in range(count, 0, -1)
        ]
        unknown = [ollama.OllamaMessageBody(role="tool", content="x", tool_name="g")] * count
        return [*[call] * count, *unknown, *last_first]

    def read(bodies: list[ollama.OllamaMessageBody]) -> list[ChatMessage]:
        written = ConversationBuilder(vision=True)
        ollama.converse(bodies, written)
        return written.messages

    few, many = conversation(100), conversation(400)
    written = read(many)
    assert {message.tool_call_id for message in written[400:800]} == {None}
    assert written[800].tool_call_id == "call_400"
    growth = _lines(lambda: read(many)) / _lines(lambda: read(few))
    assert growth < 5
