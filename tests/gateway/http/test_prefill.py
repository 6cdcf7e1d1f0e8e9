"""A last message of the assistant: whether the answer goes on in it."""

from __future__ import annotations

import pytest

from gateway.http.generation.prefill import goes_on
from gateway.http.openai.chat import ChatBody, ChatMessageBody, _goes_on
from gateway.system.refusal import Refusal
from protocol.requests import CalledTool, ChatMessage

USER = ChatMessage("user", "Hi")
BEGUN = ChatMessage("assistant", "Paris is")
CALLS = ChatMessage("assistant", "", tool_calls=(CalledTool("c", "look", "{}"),))


def _chat(*messages: ChatMessage, begins: bool | None, goes: bool | None) -> bool:
    body = ChatBody(
        model="m",
        messages=[ChatMessageBody("user")],
        add_generation_prompt=begins,
        continue_final_message=goes,
    )
    return _goes_on(body, messages)


@pytest.mark.parametrize(
    ("begins", "goes", "expected"),
    [
        (None, None, True),
        (False, True, True),
        (None, True, True),
        (False, None, True),
        (True, None, False),
        (True, False, False),
        (None, False, False),
    ],
)
def test_chat_goes_on_unless_a_new_answer_is_asked_for(
    begins: bool | None, goes: bool | None, expected: bool
) -> None:
    assert _chat(USER, BEGUN, begins=begins, goes=goes) is expected


@pytest.mark.parametrize(
    ("last", "begins", "goes", "param"),
    [
        (BEGUN, True, True, "add_generation_prompt"),
        (BEGUN, False, False, "add_generation_prompt"),
        (USER, False, None, "add_generation_prompt"),
        (USER, None, True, "continue_final_message"),
        (CALLS, None, None, "messages"),
    ],
)
def test_chat_names_fields_that_contradict(
    last: ChatMessage, begins: bool | None, goes: bool | None, param: str
) -> None:
    with pytest.raises(Refusal) as caught:
        _chat(last, begins=begins, goes=goes)
    assert caught.value.param == param


def test_calls_without_results_are_refused_by_name() -> None:
    assert not goes_on([BEGUN, USER], "input")
    with pytest.raises(Refusal, match="has calls of tools"):
        goes_on([USER, CALLS], "input")
