"""Conversations in an order that a strict chat template takes.

Templates refuse a system message in mid-conversation, a tool's result, two messages of the user in
a row, and more, or they leave such messages out in silence. What a template doesn't take is written
in another way where it stands: as a marked part of a user's message, or behind a filler for the
turn of the one who said nothing. Nothing is moved, so what was rendered in one turn is rendered
again in the next, and the prompt cache finds it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Final, TypeAlias

import msgspec

from protocol.requests import CalledTool, ChatMessage, Picture

RenderMessages: TypeAlias = Callable[[Sequence[ChatMessage]], str]
_BETWEEN: Final = "\n\n"
NO_MESSAGE: Final = ChatMessage("user", "(no message)")
NO_ANSWER: Final = ChatMessage("assistant", "(no answer)")


def _probe(*roles: str) -> list[ChatMessage]:
    return [ChatMessage(role, f"probed {number}") for number, role in enumerate(roles)]


_CALL: Final = CalledTool("probe1234", "probed_1", "{}")
_RESULT: Final = ChatMessage("tool", "probed 2", tool_call_id=_CALL.id)
_ASKED: Final = _probe("user")
_TOOLS: Final = [*_ASKED, ChatMessage("assistant", "", tool_calls=(_CALL,)), _RESULT]
_EMPTY: Final = [*_ASKED, ChatMessage("assistant", ""), *_ASKED]


class Order:
    """The order that one template takes: probes tell, each when it is first needed."""

    def __init__(self, render: RenderMessages) -> None:
        self._render = render
        self._known: dict[tuple[str, ...], bool] = {}

    def repaired(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """The conversation as the template takes it."""
        roles = [each.role for each in messages]
        first = roles[:1] == ["system"] and not self._takes_roles("system", "user")
        systems = first or ("system" in roles[1:] and not self._takes_late)
        calls = "tool" in roles or any(each.tool_calls for each in messages)
        tools = calls and not self._takes_tools
        astray = calls and not tools and _has_astray(messages) and not self._takes_astray
        if systems or tools or astray:
            messages = as_users(messages, systems=systems, first=first, tools=tools, astray=astray)
        if any(map(_is_empty, messages)) and not self._takes_empty:
            messages = [_answered(each) if _is_empty(each) else each for each in messages]
        return self._in_turns(messages)

    def _in_turns(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        begin = next((at for at, each in enumerate(messages) if each.role != "system"), None)
        if begin is None:
            fill = messages and not self._takes_roles("system")
            return [*messages, NO_MESSAGE] if fill else messages
        turns = in_turns(messages)
        if len(turns) == len(messages):
            return messages
        if not self._takes_roles("user", "user", "assistant", "assistant", "user"):
            return turns
        if turns[begin] is NO_MESSAGE and not self._takes_roles("assistant"):
            return [*messages[:begin], NO_MESSAGE, *messages[begin:]]
        return messages

    def _takes_roles(self, *roles: str) -> bool:
        if roles not in self._known:
            self._known[roles] = self._takes(_probe(*roles))
        return self._known[roles]

    @property
    def _takes_late(self) -> bool:
        """Whether the template writes system messages where they stand."""
        return self._takes_roles("system", "user", "system", "assistant", "user", "system")

    @cached_property
    def _takes_tools(self) -> bool:
        return self._takes(_TOOLS)

    @cached_property
    def _takes_astray(self) -> bool:
        return self._takes([*_ASKED, _RESULT])

    @cached_property
    def _takes_empty(self) -> bool:
        return self._takes(_EMPTY)

    def _takes(self, probe: Sequence[ChatMessage]) -> bool:
        """Whether the template writes all that the probe says, in its order."""
        texts = [each.tool_calls[0].name if each.tool_calls else each.content for each in probe]
        try:
            rendered = self._render(probe)
        except Exception:
            # The template refuses the probe, in whatever way.
            return False
        at = 0
        for text in texts:
            at = rendered.find(text, at)
            if at < 0:
                return False
            at += len(text)
        return True


def _is_empty(message: ChatMessage) -> bool:
    return message.role == "assistant" and not (message.content or message.tool_calls)


def _answered(message: ChatMessage) -> ChatMessage:
    return msgspec.structs.replace(message, content=NO_ANSWER.content)


def _has_astray(messages: Iterable[ChatMessage]) -> bool:
    """Whether there is a tool's result that follows no call."""
    called = False
    for each in messages:
        if each.role == "tool" and not called:
            return True
        called = _calls(each, called)
    return False


def _calls(message: ChatMessage, called: bool) -> bool:
    """Whether a result may follow a message; `called`: whether one might come before it."""
    return called if message.role in ("tool", "system") else bool(message.tool_calls)


def in_turns(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The conversation as turns of the user and the assistant, with fillers. A turn of the
    assistant may have calls and results, and ends with an answer.
    """
    turns: list[ChatMessage] = []
    answered = True
    for each in messages:
        if each.role == "user" and not answered:
            turns.append(NO_ANSWER)
        elif each.role in ("assistant", "tool") and answered:
            turns.append(NO_MESSAGE)
        turns.append(each)
        if each.role != "system":
            answered = each.role == "assistant" and not each.tool_calls
    return turns


def as_users(
    messages: Iterable[ChatMessage],
    *,
    systems: bool = True,
    first: bool = False,
    tools: bool = False,
    astray: bool = False,
) -> list[ChatMessage]:
    """The conversation with marked parts of users' messages in place of other messages.

    `systems`: in place of system messages; the first stays unless `first`. `tools`: in place of
    results, and calls become text of their messages. `astray`: in place of results without a call.

    A marked part joins the message of the user or tool before it. Many templates want users and
    assistants to alternate. And a new message of the user behind a tool's result would end a turn:
    some templates drop the reasoning of earlier turns.
    """
    # Each group becomes one message. A group is joined once, as it may have thousands of messages.
    groups: list[list[ChatMessage]] = []
    # Whether the last group has nothing but marked messages.
    alone = called = False
    for each in messages:
        before = groups[-1][0].role if groups else None
        leads = before in (None, "system") and not first
        marked = None
        if each.role == "system" and systems and not leads:
            marked = "system_message"
        elif each.role == "tool" and (tools or (astray and not called)):
            marked = "tool_response"
        called = _calls(each, called)
        if marked is not None:
            joins = before in ("user", "tool")
            alone = alone or not joins
            text = f"<{marked}>\n{each.content}\n</{marked}>"
            each = ChatMessage("user", text, pictures=each.pictures)
        else:
            joins = (alone and each.role == "user") or (systems and each.role == before == "system")
            alone = False
            each = _spoken(each) if tools else each
        if joins:
            groups[-1].append(each)
        else:
            groups.append([each])
    return [_joined(each) if len(each) > 1 else each[0] for each in groups]


def _spoken(message: ChatMessage) -> ChatMessage:
    """The message with its calls as text, in the form that most models know."""
    if not message.tool_calls:
        return message
    calls = [
        f'{{"name": {json.dumps(each.name)}, "arguments": {each.arguments}}}'
        for each in message.tool_calls
    ]
    marked = [f"<tool_call>\n{each}\n</tool_call>" for each in calls]
    content = "\n".join(filter(None, (message.content, *marked)))
    return msgspec.structs.replace(message, content=content, tool_calls=())


def _joined(group: list[ChatMessage]) -> ChatMessage:
    begin = 0
    pictures: list[Picture] = []
    for each in group:
        pictures += (
            msgspec.structs.replace(picture, at=picture.at + begin) for picture in each.pictures
        )
        begin += len(each.content) + len(_BETWEEN)
    content = _BETWEEN.join(each.content for each in group)
    return msgspec.structs.replace(group[0], content=content, pictures=tuple(pictures))
