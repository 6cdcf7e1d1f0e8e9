from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.why.changes import changes
from gateway.why.sections import Sketch
from protocol.requests import ChatMessage, ChatPrompt, Picture
from tests.support.asked import chat, sketched

TALK = ("What is a bulkhead?", "A wall.", "Of what?", "Of steel.", "And how thick?")


def _tools(*names: str, about: str = "Looks it up.") -> str:
    return json.dumps(
        [{"type": "function", "function": {"name": name, "description": about}} for name in names]
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (chat(*TALK), chat(*TALK), []),
        (chat(*TALK[:3]), chat(*TALK), []),
        (chat(*TALK), chat(*TALK[:3]), []),
        (chat(*TALK), chat(*TALK, arguments='{"a":1}'), [("arguments", "template arguments")]),
        (chat(*TALK, system="Be kind."), chat(*TALK), [("system_removed", "system")]),
        (chat(*TALK), chat(*TALK, system="Be kind."), [("system_added", "system")]),
        (chat(*TALK, system="A"), chat(*TALK, system="B"), [("system_changed", "system")]),
        (
            chat(*TALK, tools=_tools("a", "b")),
            chat(*TALK, tools=_tools("b", "a")),
            [("tools_reordered", "tools")],
        ),
        (
            chat(*TALK, tools=_tools("a", "b")),
            chat(*TALK, tools=_tools("a", "b", "c")),
            [("tools_added", "tools")],
        ),
        (
            chat(*TALK, tools=_tools("a", "b")),
            chat(*TALK, tools=_tools("a")),
            [("tools_removed", "tools")],
        ),
        (
            chat(*TALK, tools=_tools("a", "b")),
            chat(*TALK, tools=_tools("a", "c")),
            [("tools_replaced", "tools")],
        ),
        (
            chat(*TALK, tools=_tools("a")),
            chat(*TALK, tools=_tools("a", about="Finds it.")),
            [("tool_changed", "tool a")],
        ),
        (
            chat(*TALK),
            chat(*TALK[:2], "Of which?", *TALK[3:]),
            [("message_changed", "message 3 (user)")],
        ),
        (chat(*TALK), chat(*TALK[2:]), [("messages_removed", "message 1 (user)")]),
        (chat(*TALK[2:]), chat(*TALK), [("messages_inserted", "message 1 (user)")]),
        (
            chat(*TALK),
            chat("In short: a wall.", *TALK[3:]),
            [("messages_summarized", "message 1 (user)")],
        ),
        (
            chat(*TALK),
            chat(*TALK[:2], "In short: it is a wall of steel."),
            [("messages_summarized", "message 3 (user)")],
        ),
        (
            chat(*TALK),
            chat("Who is Hans Christian Andersen?", "A wall."),
            [("other_conversation", "message 1 (user)")],
        ),
        (
            chat(*TALK, system="A", tools=_tools("a")),
            chat(*TALK, system="B", tools=_tools("b")),
            [("tools_replaced", "tools"), ("system_changed", "system")],
        ),
    ],
)
def test_change_is_named_with_its_section(
    old: Sketch, new: Sketch, expected: list[tuple[str, str]]
) -> None:
    assert [(change.kind, change.section) for change in changes(old, new)] == expected


def test_reasoning_that_was_dropped_is_named() -> None:
    question = ChatMessage("user", "What is a bulkhead?")
    thought = ChatMessage("assistant", "A wall.", reasoning="A ship has walls.")
    plain = msgspec.structs.replace(thought, reasoning=None)
    old, new = (
        sketched(ChatPrompt((question, answer, ChatMessage("user", "Of what?"))))
        for answer in (thought, plain)
    )
    (change,) = changes(old, new)
    assert (change.kind, change.section) == ("reasoning_dropped", "message 2 (assistant)")


def test_picture_that_changed_is_named() -> None:
    old, new = (
        sketched(ChatPrompt((ChatMessage("user", "See?", pictures=(Picture(data, 0, "p"),)),)))
        for data in (b"one", b"two")
    )
    (change,) = changes(old, new)
    assert (change.kind, change.section) == ("pictures_changed", "message 1 (user)")


TEXTS = st.lists(st.sampled_from(("one", "two", "three at 12:01", "three at 12:02")), max_size=6)


@given(TEXTS, TEXTS, st.booleans(), st.booleans())
def test_conversations_of_any_messages_can_be_compared(
    old: list[str], new: list[str], old_system: bool, new_system: bool
) -> None:
    before = chat(*old, system="S" if old_system else "")
    after = chat(*new, system="S" if new_system else "")
    found = changes(before, after)
    assert not changes(after, after)
    least = min(len(old), len(new))
    goes_on = old[:least] == new[:least] and old_system == new_system
    assert bool(found) is not goes_on
