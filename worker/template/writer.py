"""Messages in the form and in the order that one chat template accepts.

A strict template refuses a system message in mid-conversation, a tool's result, or two messages of
the user in a row, or it leaves such a message out without an error. Such a message is written in
another way at the same place: as a marked part of a user's message, or after a filler for the turn
of the side that said nothing. No message moves. So the text of one turn is the same in the next
turn, and the prompt cache finds it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Final, TypeAlias

import msgspec

from protocol.requests import CalledTool, ChatMessage, Picture

_MISTRALS_ID: Final = re.compile(r"[A-Za-z0-9]{9}")
_LENGTH_OF_NINE: Final = re.compile(r"length\s*(?:[!=]=|<)\s*9")
_PROBED_ID: Final = "probe1234"
Message: TypeAlias = dict[str, Any]
RenderText: TypeAlias = Callable[[list[Message]], str]


class MessageWriter:
    """Writes messages in the form of one chat template.

    Most templates take the arguments of a call as an object, and write it as JSON themselves. Other
    templates take the arguments as text. Arguments that are no JSON object are always text.
    """

    def __init__(self, template: str, render: RenderText) -> None:
        """`render` renders messages by the template, to find out what the template takes. It is
        called when that is first needed.
        """
        self._template = template
        self._render = render
        self.order = MessageOrder(lambda messages: render(self.messages(messages)))

    def messages(self, messages: Iterable[ChatMessage]) -> list[Message]:
        ids = _CallIds(self._template)
        return [self._message(message, ids) for message in messages]

    def _message(self, message: ChatMessage, ids: _CallIds) -> Message:
        written: Message = {"role": message.role, "content": message.content}
        if message.name is not None:
            written["name"] = message.name
        call_id = message.tool_call_id
        if call_id is None and message.role == "tool":
            call_id = ids.substitute
        if call_id is not None:
            written["tool_call_id"] = ids.known(call_id)
            name = ids.name_of(call_id)
            if name is not None:
                written.setdefault("name", name)
        if message.tool_calls:
            written["tool_calls"] = [self._call(tool_call, ids) for tool_call in message.tool_calls]
        # transformers copies reasoning_content to the other names that templates have for it.
        if message.reasoning is not None and not self._refuses_reasoning(message):
            written["reasoning_content"] = message.reasoning
        return written

    def _refuses_reasoning(self, message: ChatMessage) -> bool:
        """Whether the template refuses the message with its reasoning. gpt-oss's template takes
        reasoning or text beside a call, not both. The text stays, since the user saw it.
        """
        return (
            bool(message.tool_calls and message.content) and "<|channel|>analysis" in self._template
        )

    def _call(self, call: CalledTool, ids: _CallIds) -> Message:
        arguments: Any = call.arguments
        if not self._wants_text:
            arguments = _object(call.arguments)
        function = {"name": call.name, "arguments": arguments}
        return {"id": ids.new(call), "type": "function", "function": function}

    @cached_property
    def _wants_text(self) -> bool:
        """Whether the template copies arguments into its text as they are."""
        function = {"name": "probe", "arguments": {"probed": "x"}}
        call = {"id": _PROBED_ID, "type": "function", "function": function}
        conversation: list[Message] = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "b", "name": "probe", "tool_call_id": _PROBED_ID},
        ]
        try:
            # Python's form of an object, which no template writes on purpose.
            return "'probed'" in self._render(conversation)
        except TypeError:
            # The template joins texts, and the object isn't a text.
            return True
        except Exception:
            # The template refuses the conversation for another reason.
            return False


def _object(arguments: str) -> Any:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


class _CallIds:
    """The ids of calls, in the form that a template wants. Mistral's ids have nine letters or
    digits, and every result needs one. Kimi's ids have the function's name and the call's number:
    Kimi's template writes the name nowhere else.
    """

    def __init__(self, template: str) -> None:
        self._nine = _LENGTH_OF_NINE.search(template) is not None
        self._kimi = "<|tool_call_argument_begin|>" in template
        self._count = 0
        self._known: dict[str, tuple[str, str]] = {}

    def new(self, call: CalledTool) -> str:
        written = f"functions.{call.name}:{self._count}" if self._kimi else self._shortened(call.id)
        self._count += 1
        self._known[call.id] = written, call.name
        return written

    @property
    def substitute(self) -> str | None:
        """The id for a result without one, if the template insists on an id."""
        return "none" if self._nine else None

    def known(self, call_id: str) -> str:
        return self._known[call_id][0] if call_id in self._known else self._shortened(call_id)

    def name_of(self, call_id: str) -> str | None:
        return self._known[call_id][1] if call_id in self._known else None

    def _shortened(self, call_id: str) -> str:
        if not self._nine or _MISTRALS_ID.fullmatch(call_id):
            return call_id
        return hashlib.blake2s(call_id.encode()).hexdigest()[:9]


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


class MessageOrder:
    """The order that one template takes: probes tell, each when it is first needed."""

    def __init__(self, render: RenderMessages) -> None:
        self._render = render
        self._known: dict[tuple[str, ...], bool] = {}

    def repaired(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """The conversation as the template takes it."""
        roles = [message.role for message in messages]
        first = roles[:1] == ["system"] and not self._takes_roles("system", "user")
        systems = first or ("system" in roles[1:] and not self._takes_late)
        calls = "tool" in roles or any(chat_message.tool_calls for chat_message in messages)
        tools = calls and not self._takes_tools
        astray = calls and not tools and _has_astray(messages) and not self._takes_astray
        if systems or tools or astray:
            messages = as_users(messages, systems=systems, first=first, tools=tools, astray=astray)
        if any(map(_is_empty, messages)) and not self._takes_empty:
            messages = [
                _answered(message) if _is_empty(message) else message for message in messages
            ]
        return self._in_turns(messages)

    def _in_turns(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        begin = next(
            (place for place, message in enumerate(messages) if message.role != "system"), None
        )
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
        texts = [
            message.tool_calls[0].name if message.tool_calls else message.content
            for message in probe
        ]
        try:
            rendered = self._render(probe)
        except Exception:
            # The template refuses the probe, in whatever way.
            return False
        place = 0
        for text in texts:
            place = rendered.find(text, place)
            if place < 0:
                return False
            place += len(text)
        return True


def _is_empty(message: ChatMessage) -> bool:
    return message.role == "assistant" and not (message.content or message.tool_calls)


def _answered(message: ChatMessage) -> ChatMessage:
    return msgspec.structs.replace(message, content=NO_ANSWER.content)


def _has_astray(messages: Iterable[ChatMessage]) -> bool:
    """Whether there is a tool's result that follows no call."""
    called = False
    for message in messages:
        if message.role == "tool" and not called:
            return True
        called = _calls(message, called)
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
    for message in messages:
        if message.role == "user" and not answered:
            turns.append(NO_ANSWER)
        elif message.role in ("assistant", "tool") and answered:
            turns.append(NO_MESSAGE)
        turns.append(message)
        if message.role != "system":
            answered = message.role == "assistant" and not message.tool_calls
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
    for message in messages:
        before = groups[-1][0].role if groups else None
        leads = before in (None, "system") and not first
        marked = None
        if message.role == "system" and systems and not leads:
            marked = "system_message"
        elif message.role == "tool" and (tools or (astray and not called)):
            marked = "tool_response"
        called = _calls(message, called)
        if marked is not None:
            joins = before in ("user", "tool")
            alone = alone or not joins
            text = f"<{marked}>\n{message.content}\n</{marked}>"
            message = ChatMessage("user", text, pictures=message.pictures)
        else:
            joins = (alone and message.role == "user") or (
                systems and message.role == before == "system"
            )
            alone = False
            message = _spoken(message) if tools else message
        if joins:
            groups[-1].append(message)
        else:
            groups.append([message])
    return [_joined(group) if len(group) > 1 else group[0] for group in groups]


def _spoken(message: ChatMessage) -> ChatMessage:
    """The message with its calls as text, in the form that most models know."""
    if not message.tool_calls:
        return message
    calls = [
        f'{{"name": {json.dumps(tool_call.name)}, "arguments": {tool_call.arguments}}}'
        for tool_call in message.tool_calls
    ]
    marked = [f"<tool_call>\n{call}\n</tool_call>" for call in calls]
    content = "\n".join(filter(None, (message.content, *marked)))
    return msgspec.structs.replace(message, content=content, tool_calls=())


def _joined(group: list[ChatMessage]) -> ChatMessage:
    begin = 0
    pictures: list[Picture] = []
    for message in group:
        pictures += (
            msgspec.structs.replace(picture, at=picture.at + begin) for picture in message.pictures
        )
        begin += len(message.content) + len(_BETWEEN)
    content = _BETWEEN.join(chat_message.content for chat_message in group)
    return msgspec.structs.replace(group[0], content=content, pictures=tuple(pictures))
