"""Messages as chat templates want them.

Agents send system messages in mid-conversation. Templates that have no place for them there get
them as a part of the user's messages: if one were moved to the front, everything behind would be
computed anew in every turn.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from protocol.requests import CalledTool, ChatMessage, Picture

_PROBE: Final[list[dict[str, Any]]] = [
    {"role": "system", "content": "probed 1"},
    {"role": "user", "content": "probed 2"},
    {"role": "system", "content": "probed 3"},
    {"role": "assistant", "content": "probed 4"},
    {"role": "user", "content": "probed 5"},
    {"role": "system", "content": "probed 6"},
]
_BETWEEN: Final = "\n\n"
_IN_PLACE: Final = re.compile(".*".join(re.escape(each["content"]) for each in _PROBE), re.DOTALL)
Message: TypeAlias = dict[str, Any]
RenderText: TypeAlias = Callable[[list[Message]], str]
_MISTRALS_ID: Final = re.compile(r"[A-Za-z0-9]{9}")
_LENGTH_OF_NINE: Final = re.compile(r"length\s*[!=]=\s*9")
_PROBED_ID: Final = "probe1234"


class MessageWriter:
    """Writes down conversations for one chat template.

    Arguments of calls are given as objects, which most templates write as JSON themselves. Where
    that isn't so, and where they are no JSON object, they are given as text.
    """

    def __init__(self, template: str, render: RenderText) -> None:
        """`render` is the template itself, which is tried out when it is first needed."""
        self._template = template
        self._render = render
        self._wants_text: bool | None = None
        self._takes_late: bool | None = None

    def placed(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """The same conversation, with system messages where the template takes them."""
        late = any(each.role == "system" for each in messages[1:])
        return as_users(messages) if late and not self.takes_late else messages

    def messages(self, messages: Iterable[ChatMessage]) -> list[Message]:
        ids = _Ids(self._template)
        return [self._message(each, ids) for each in messages]

    def _message(self, message: ChatMessage, ids: _Ids) -> Message:
        written: Message = {"role": message.role, "content": message.content}
        if message.name is not None:
            written["name"] = message.name
        if message.tool_call_id is not None:
            written["tool_call_id"] = ids.known(message.tool_call_id)
            name = ids.name_of(message.tool_call_id)
            if name is not None:
                written.setdefault("name", name)
        if message.tool_calls:
            written["tool_calls"] = [self._call(each, ids) for each in message.tool_calls]
        # transformers gives it under the other names that templates have for it, too.
        if message.reasoning is not None and not self._refuses_reasoning(message):
            written["reasoning_content"] = message.reasoning
        return written

    def _refuses_reasoning(self, message: ChatMessage) -> bool:
        """gpt-oss's template takes either reasoning or text beside a call. The text was seen."""
        return (
            bool(message.tool_calls and message.content) and "<|channel|>analysis" in self._template
        )

    def _call(self, call: CalledTool, ids: _Ids) -> Message:
        arguments: Any = call.arguments
        if not self.wants_text:
            arguments = _object(call.arguments)
        function = {"name": call.name, "arguments": arguments}
        return {"id": ids.new(call), "type": "function", "function": function}

    @property
    def wants_text(self) -> bool:
        """Whether the template puts arguments into its text as they are."""
        if self._wants_text is None:
            self._wants_text = _wants_text(self._render)
        return self._wants_text

    @property
    def takes_late(self) -> bool:
        """Whether the template has system messages where they stand."""
        if self._takes_late is None:
            self._takes_late = takes_late(self._render)
        return self._takes_late


def takes_late(render: Callable[[list[dict[str, Any]]], str]) -> bool:
    """Whether a template has system messages where they stand."""
    try:
        return _IN_PLACE.search(render(_PROBE)) is not None
    except Exception:
        # It refuses them, in whatever way.
        return False


def as_users(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """The same, with one system message at most, which is the first.

    Each later one is marked, and joins what the user said, or a tool gave, before it. Many
    templates want users and assistants to alternate; and behind a tool's result a new question of
    the user's would be the end of a turn, of which some templates drop what was thought.
    """
    # Of each message what joins it; joined once, as there may be tens of thousands.
    groups: list[list[ChatMessage]] = []
    # The last group is marked, and nothing else.
    alone = False
    for each in messages:
        before = groups[-1][0].role if groups else None
        if each.role == "system" and before not in (None, "system"):
            each = ChatMessage("user", f"<system_message>\n{each.content}\n</system_message>")
            joins = before in ("user", "tool")
            alone = alone or not joins
        else:
            joins = (alone and each.role == "user") or each.role == before == "system"
            alone = False
        if joins:
            groups[-1].append(each)
        else:
            groups.append([each])
    return [_joined(each) if len(each) > 1 else each[0] for each in groups]


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


def _wants_text(render: RenderText) -> bool:
    function = {"name": "probe", "arguments": {"probed": "x"}}
    call = {"id": _PROBED_ID, "type": "function", "function": function}
    conversation: list[Message] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "b", "name": "probe", "tool_call_id": _PROBED_ID},
    ]
    try:
        # As Python would write an object, which no template means to.
        return "'probed'" in render(conversation)
    except TypeError:
        # It joins texts.
        return True
    except Exception:
        # It wants something else of a conversation, and says nothing about arguments.
        return False


def _object(arguments: str) -> Any:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


class _Ids:
    """Ids of calls, as some templates want them: Mistral's have nine letters or digits, Kimi's the
    name and the number of the call, which is all that its template writes of it.
    """

    def __init__(self, template: str) -> None:
        self._nine = _LENGTH_OF_NINE.search(template) is not None
        self._kimi = "<|tool_call_argument_begin|>" in template
        self._count = 0
        self._known: dict[str, tuple[str, str]] = {}

    def new(self, call: CalledTool) -> str:
        written = call.id
        if self._kimi:
            written = f"functions.{call.name}:{self._count}"
        elif self._nine and not _MISTRALS_ID.fullmatch(call.id):
            written = _nine(call.id)
        self._count += 1
        self._known[call.id] = written, call.name
        return written

    def known(self, call_id: str) -> str:
        if call_id in self._known:
            return self._known[call_id][0]
        return _nine(call_id) if self._nine and not _MISTRALS_ID.fullmatch(call_id) else call_id

    def name_of(self, call_id: str) -> str | None:
        return self._known[call_id][1] if call_id in self._known else None


def _nine(call_id: str) -> str:
    return hashlib.blake2s(call_id.encode()).hexdigest()[:9]
