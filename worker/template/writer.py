"""Messages in the form that one chat template takes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Final, TypeAlias

from protocol.requests import CalledTool, ChatMessage
from worker.template.order import Order

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
        self.order = Order(lambda messages: render(self.messages(messages)))

    def messages(self, messages: Iterable[ChatMessage]) -> list[Message]:
        ids = _CallIds(self._template)
        return [self._message(each, ids) for each in messages]

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
            written["tool_calls"] = [self._call(each, ids) for each in message.tool_calls]
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
