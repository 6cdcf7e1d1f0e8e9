"""Conversations of as many items as a body can have: each is looked at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from gateway.http.ollama import bodies as ollama
from gateway.http.openai.responses_conversation import converse
from gateway.http.openai.responses_items import ItemBody


def _joins(call: Callable[[], object], separator: str) -> int:
    """How often texts are joined with this between them."""
    count = 0

    def note(_frame: FrameType, event: str, called: Any) -> None:
        nonlocal count
        if event == "c_call" and called.__name__ == "join":
            count += called.__self__ == separator

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def _lines(call: Callable[[], object]) -> int:
    """How many lines of Python that runs."""
    count = 0

    def note(_frame: FrameType, event: str, _value: object) -> Any:
        nonlocal count
        count += event == "line"
        return note

    sys.settrace(note)
    try:
        call()
    finally:
        sys.settrace(None)
    return count


def test_what_the_system_says_is_joined_once() -> None:
    items = [ItemBody(role="system", content=f"rule {number}") for number in range(500)]
    items.append(ItemBody(role="developer", content="the last"))
    items.append(ItemBody(role="user", content="Hello"))
    names = [f"input[{number}]" for number in range(len(items))]
    messages = converse(None, items, names).messages
    assert [each.role for each in messages] == ["system", "user"]
    assert messages[0].content.startswith("rule 0\n\nrule 1\n\n")
    assert messages[0].content.endswith("rule 499\n\nthe last")
    assert _joins(lambda: converse(None, items, names), "\n\n") == 1


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

    few, many = conversation(100), conversation(400)
    written = ollama.chat_messages(many, [])
    assert {each.tool_call_id for each in written[400:800]} == {None}
    assert written[800].tool_call_id == "call_400"
    growth = _lines(lambda: ollama.chat_messages(many, [])) / _lines(
        lambda: ollama.chat_messages(few, [])
    )
    assert growth < 5
