"""Turns the items of a response into a conversation. Items of unknown types are skipped, so that
the conversation can go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from gateway.http.generation.conversation import (
    UNSEEN,
    ConversationBuilder,
    MessageText,
    PlacedPicture,
)
from gateway.http.generation.pictures import Source
from gateway.http.generation.tools import template_function
from gateway.http.openai.responses_items import (
    ContentBody,
    DescribedTool,
    ItemBody,
    described_tools,
    opened,
    refused_at,
)
from protocol.requests import CalledTool

# Parts of an assistant's message in other APIs.
_THOUGHTS: Final = ("thinking", "reasoning")
_TEXTS: Final = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_SUMMED_UP: Final = "What happened in this conversation before, summed up:\n\n"
_NOT_READ: Final = (
    "What happened in this conversation before was summed up by another server, and can't be read "
    "here."
)
_SUM_UP: Final = (
    "This conversation is about to be replaced by a summary of it, from which somebody else goes "
    "on. Write that summary now, and nothing else: what is to be done, what was done and found so "
    "far, what was decided and why, which files, names and values matter, what the user wants to "
    "be kept to, and what comes next. Call no tools."
)
_CALLABLE: Final = "These functions can be called from now on:\n"
_SHOWN: Final = "What the results show:"


class BroughtTools(Struct, frozen=True):
    """The tools that items bring. The `early` ones stand before the first message. A message
    describes the `late` ones.
    """

    early: list[DescribedTool]
    late: list[DescribedTool]


def converse(
    instructions: str | None,
    items: Sequence[ItemBody],
    names: Sequence[str],
    conversation: ConversationBuilder,
) -> BroughtTools:
    """Add items to the conversation. `names` has the name of each item for errors.

    Raises:
        Refusal: an item is invalid.
    """
    writer = _ItemWriter(conversation)
    if instructions:
        writer.say("system", instructions)
    for item, name in zip(items, names, strict=True):
        conversation.start_turn(item.speaker)
        writer.add(item, name)
    if items and items[-1].kind == "compaction_trigger":
        writer.say("user", _SUM_UP)
    writer.close()
    return writer.tools


class _AssistantMessage(Struct):
    """An assistant's message while its parts are gathered from items."""

    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[CalledTool] = []


class _ItemWriter:
    """Writes items as messages of a conversation."""

    def __init__(self, conversation: ConversationBuilder) -> None:
        self.tools = BroughtTools([], [])
        self._conversation = conversation
        # The texts of the system's messages at the beginning. They are joined to one message, since
        # many templates take only one.
        self._system: list[str] = []
        self._turn: _AssistantMessage | None = None
        self._calls: set[str] = set()
        # Pictures of tool results. Templates allow pictures only in users' messages, so a user's
        # message with these pictures follows the results.
        self._shown: list[PlacedPicture] = []

    def add(self, item: ItemBody, name: str) -> None:
        match item.kind:
            case "message":
                self._add_message(item, name)
            case "reasoning":
                turn = self._open(unless=("texts", "calls"))
                turn.reasoning += filter(None, [_reasoning(item, name)])
            case "function_call":
                self._add_call(item, name, item.function_name, item.arguments)
            case "custom_tool_call":
                self._add_call(item, name, item.function_name, {"input": item.input})
            case "tool_search_call" if item.call_id is not None:
                self._add_call(item, name, "tool_search", item.arguments)
            case "local_shell_call":
                self._add_call(item, name, "local_shell", item.action)
            case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
                self._add_result(item, name, _readable(item.output))
            case "tool_search_output" if item.call_id is not None:
                self._add_result(item, name, self._describe_tools(item, name))
            case "additional_tools":
                self._add_tools(item, name)
            case "agent_message":
                about = f"{item.author or 'Another agent'} to {item.recipient or 'you'}:\n"
                self.say("user", about + _readable(item.content))
            case "compaction":
                summary = item.summed_up
                self.say("user", _NOT_READ if summary is None else _SUMMED_UP + summary)

    # Messages

    def say(self, role: str, text: str | MessageText) -> None:
        self._end_turn()
        if role == "system" and not self._conversation.messages:
            self._system.append(str(text))
        else:
            self._add(role, text)

    def close(self) -> None:
        self._end_turn()
        self._end_system()

    def _add(self, role: str, text: str | MessageText, **fields: Any) -> None:
        self._end_system()
        self._conversation.add(role, text, **fields)

    def _end_system(self) -> None:
        if self._system:
            self._conversation.add("system", "\n\n".join(self._system))
            self._system.clear()

    def _add_message(self, item: ItemBody, name: str) -> None:
        match item.role:
            case None:
                raise refused_at("is missing", f"{name}.role")
            case "assistant":
                parts = item.content if isinstance(item.content, list) else []
                thoughts = [part for part in parts if part.type in _THOUGHTS]
                texts = [part for part in parts if part not in thoughts] if parts else item.content
                turn = self._open(unless=("texts",))
                turn.reasoning += [part.thinking or part.text or "" for part in thoughts]
                turn.texts += filter(None, [_text(texts, f"{name}.content")])
            case role:
                self.say("system" if role == "developer" else role, self._content(item, name))

    def _open(self, unless: tuple[str, ...] = ()) -> _AssistantMessage:
        """The assistant's open message. If a field of `unless` is filled, begin a new message."""
        if self._turn is not None and any(getattr(self._turn, field) for field in unless):
            self._end_turn()
        if self._turn is None:
            self._end_turn()
            self._turn = _AssistantMessage()
        return self._turn

    def _end_turn(self, *, results_follow: bool = False) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            self._add(
                "assistant",
                "".join(turn.texts),
                reasoning="".join(turn.reasoning) or None,
                tool_calls=tuple(turn.calls),
            )
        if self._shown and not results_follow:
            self._add("user", _SHOWN, pictures=tuple(self._shown))
            self._shown.clear()

    def _content(self, item: ItemBody, name: str) -> MessageText:
        """The text of an item, and its pictures with their places in the text."""
        text = self._conversation.text(item.role or "")
        if not isinstance(item.content, list):
            text.add(_text(item.content, f"{name}.content"))
            return text
        for place, part in enumerate(item.content):
            path = f"{name}.content[{place}]"
            if part.type == "input_image":
                text.show(self._source(part, path))
            else:
                text.add(_part_text(part, path))
        return text

    def _source(self, part: ContentBody, path: str) -> Source:
        path = f"{path}.image_url"
        if part.image_url is None and self._conversation.vision:
            raise refused_at("is missing: files are not supported, send an address", path)
        return Source(part.image_url or "", path)

    # Calls

    def _add_call(self, item: ItemBody, name: str, function: str, arguments: Any) -> None:
        call_id = item.call_id or (item.id if item.kind == "local_shell_call" else None)
        if call_id is None or not function:
            raise refused_at("is missing", f"{name}.{'name' if call_id else 'call_id'}")
        self._calls.add(call_id)
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments or {}).decode()
        self._open().calls.append(CalledTool(call_id, function, arguments.strip() or "{}"))

    def _add_result(self, item: ItemBody, name: str, text: str) -> None:
        # The result of a local shell has the id of its call as its own id.
        call_id = item.call_id or (item.id if item.kind == "local_shell_call_output" else None)
        if call_id is None:
            raise refused_at("is missing", f"{name}.call_id")
        if call_id not in self._calls:
            raise refused_at(f"there is no call {call_id[:100]!r} before it", f"{name}.call_id")
        self._end_turn(results_follow=True)
        unseen = False
        for place, part in enumerate(_parts(item.output)):
            if part.type == "input_image":
                source = self._source(part, f"{name}.output[{place}]")
                if self._conversation.sees(source, "tool"):
                    self._shown.append(PlacedPicture(source, len(_SHOWN)))
                else:
                    unseen = True
        self._add("tool", f"{text}\n{UNSEEN}" if unseen else text, tool_call_id=call_id)

    # Tools

    def _add_tools(self, item: ItemBody, name: str) -> None:
        if self._turn is None and not self._conversation.messages:
            self.tools.early.extend(described_tools(item.tools or (), f"{name}.tools"))
        else:
            self.say("system", self._describe_tools(item, name))

    def _describe_tools(self, item: ItemBody, name: str) -> str:
        """Add the item's tools to the late tools, and return the text that makes them callable from
        here on. Earlier messages stay the same, so they match the prompt cache.
        """
        tools = list(described_tools(item.tools or (), f"{name}.tools"))
        self.tools.late.extend(tools)
        functions = [template_function(tool.function) for tool in tools]
        return _CALLABLE + msgspec.json.encode(functions).decode()


def _reasoning(item: ItemBody, name: str) -> str:
    """The text of the content, else of the summary, else of the reasoning that was sealed here."""
    for parts, place in ((item.content, "content"), (item.summary, "summary")):
        if parts:
            return _text(parts, f"{name}.{place}")
    return opened(item.encrypted_content or "")


def _readable(content: str | list[ContentBody] | ContentBody | None) -> str:
    """The joined texts of a content. Parts without a text are skipped."""
    if isinstance(content, str):
        return content
    return "".join(part.text or part.refusal or "" for part in _parts(content))


def _parts(content: str | list[ContentBody] | ContentBody | None) -> list[ContentBody]:
    if isinstance(content, ContentBody):
        return [content]
    return content if isinstance(content, list) else []


def _text(content: str | list[ContentBody] | None, path: str) -> str:
    if content is None:
        raise refused_at("is missing: send a text, which may be empty", path)
    if isinstance(content, str):
        return content
    return "".join(_part_text(part, f"{path}[{place}]") for place, part in enumerate(content))


def _part_text(part: ContentBody, path: str) -> str:
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type not in _TEXTS:
        raise refused_at(
            f"a part of type {part.type[:100]!r} is not supported here: send texts, and pictures "
            "in a user's message or a tool's output",
            path,
        )
    if part.text is None:
        raise refused_at("is missing: send a text, which may be empty", f"{path}.text")
    return part.text
