"""A conversation: whether an answer goes on in its last message, and which pictures are refused."""

from __future__ import annotations

import pytest

from gateway.http.generation.conversation import ConversationBuilder
from gateway.http.generation.pictures import Source
from gateway.http.openai.chat import ChatBody, ChatMessageBody, _goes_on
from gateway.system.refusal import Refusal
from protocol.requests import CalledTool, ChatMessage

USER = ChatMessage("user", "Hi")
BEGUN = ChatMessage("assistant", "Paris is")
CALLS = ChatMessage("assistant", "", tool_calls=(CalledTool("c", "look", "{}"),))


def _conversation(*messages: ChatMessage) -> ConversationBuilder:
    conversation = ConversationBuilder(vision=False)
    conversation.messages += messages
    return conversation


def _chat(*messages: ChatMessage, begins: bool | None, goes: bool | None) -> bool:
    body = ChatBody(
        model="m",
        messages=[ChatMessageBody("user")],
        add_generation_prompt=begins,
        continue_final_message=goes,
    )
    return _goes_on(body, _conversation(*messages))


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
    assert not _conversation(BEGUN, USER).goes_on("input")
    with pytest.raises(Refusal, match="has calls of tools"):
        _conversation(USER, CALLS).goes_on("input")


@pytest.mark.parametrize(
    ("roles", "place"),
    [
        ("", None),
        ("user", 0),
        ("user assistant", None),
        ("user assistant user", 2),
        ("user user", 1),
        ("user system", 0),
        ("user assistant tool", None),
    ],
)
def test_model_without_vision_refuses_pictures_of_newest_user_message(
    roles: str, place: int | None
) -> None:
    conversation = _conversation()
    for index, role in enumerate(roles.split()):
        conversation.start_turn(role)
        text = conversation.text(role)
        if role == "user":
            text.show(Source("data:x", str(index)))
        conversation.add(role, text)
    refused = conversation.refused
    assert (refused and refused.name) == (None if place is None else str(place))
    assert conversation.sources == []


def test_only_messages_of_users_show_pictures() -> None:
    with pytest.raises(Refusal, match="only a user's message may have pictures"):
        _conversation().text("assistant").show(Source("data:x", "messages[0]"))


def test_models_system_prompt_stands_first_unless_there_is_another() -> None:
    conversation = _conversation(USER)
    conversation.begin_with("Be brief.")
    conversation.begin_with("Be exact.")
    assert conversation.messages == [ChatMessage("system", "Be brief."), USER]
