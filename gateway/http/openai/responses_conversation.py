"""Turns the items of a response into the messages that a worker renders. Items of unknown types are
skipped, so that the conversation can go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from gateway.http.generation.pictures import UNSEEN
from gateway.http.generation.tools import template_function
from gateway.http.openai.responses_items import (
    ContentBody,
    DescribedTool,
    ItemBody,
    described_tools,
    function_name,
    opened,
    refused_at,
)
from protocol.requests import CalledTool, ChatMessage, Picture

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


class RenderedItems(Struct, frozen=True):
    """The messages for a worker. `tools` came in items before the first message. `late_tools` came
    later, so a message describes them.
    """

    messages: tuple[ChatMessage, ...]
    tools: list[DescribedTool]
    late_tools: list[DescribedTool]


def converse(
    instructions: str | None,
    items: Sequence[ItemBody],
    names: Sequence[str],
    pictures: Sequence[bytes] = (),
    *,
    vision: bool = True,
) -> RenderedItems:
    """Turn items into messages. `names` has the name of each item for errors. `pictures` has the
    bytes of each picture that `picture_sources` lists. `vision`: whether the model has vision.

    Raises:
        Refusal: an item is invalid.
    """
    conversation = _Conversation(iter(pictures), vision=vision)
    if instructions:
        conversation.say("system", instructions)
    for item, name in zip(items, names, strict=True):
        conversation.add(item, name)
    if items and items[-1].kind == "compaction_trigger":
        conversation.say("user", _SUM_UP)
    return conversation.said()


class _AssistantMessage(Struct):
    """An assistant's message while its parts are gathered from items."""

    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[CalledTool] = []


class _Conversation:
    def __init__(self, pictures: Iterator[bytes], *, vision: bool) -> None:
        self._messages: list[ChatMessage] = []
        # The texts of the system's messages at the beginning. They are joined to one message, since
        # many templates take only one.
        self._system: list[str] = []
        self._pictures = pictures
        self._vision = vision
        self._turn: _AssistantMessage | None = None
        self._calls: set[str] = set()
        # Pictures of tool results. Templates allow pictures only in users' messages, so a user's
        # message with these pictures follows the results.
        self._shown: list[Picture] = []
        self._tools: list[DescribedTool] = []
        self._late_tools: list[DescribedTool] = []

    def said(self) -> RenderedItems:
        self._close()
        begin = [ChatMessage("system", "\n\n".join(self._system))] if self._system else []
        return RenderedItems((*begin, *self._messages), self._tools, self._late_tools)

    def add(self, item: ItemBody, name: str) -> None:
        match item.kind:
            case "message":
                self._message(item, name)
            case "reasoning":
                turn = self._open(unless=("texts", "calls"))
                turn.reasoning += filter(None, [_reasoning(item, name)])
            case "function_call":
                self._call(
                    item, name, function_name(item.namespace, item.name or ""), item.arguments
                )
            case "custom_tool_call":
                function = function_name(item.namespace, item.name or "")
                self._call(item, name, function, {"input": item.input})
            case "tool_search_call" if item.call_id is not None:
                self._call(item, name, "tool_search", item.arguments)
            case "local_shell_call":
                self._call(item, name, "local_shell", item.action)
            case "function_call_output" | "custom_tool_call_output":
                self._result(item, name, _output(item, name))
            case "local_shell_call_output":
                self._result(item, name, _output(item, name))
            case "tool_search_output" if item.call_id is not None:
                self._result(item, name, self._take_tools(item, name))
            case "additional_tools":
                self._add_tools(item, name)
            case "agent_message":
                about = f"{item.author or 'Another agent'} to {item.recipient or 'you'}:\n"
                self.say("user", about + _readable(item.content))
            case "compaction":
                summary = item.summed_up
                self.say("user", _NOT_READ if summary is None else _SUMMED_UP + summary)

    # Messages

    def say(self, role: str, text: str, pictures: tuple[Picture, ...] = ()) -> None:
        self._close()
        if role == "system" and not self._messages:
            self._system.append(text)
        else:
            self._messages.append(ChatMessage(role, text, pictures=pictures))

    def _message(self, item: ItemBody, name: str) -> None:
        match item.role:
            case None:
                raise refused_at("is missing", f"{name}.role")
            case "assistant":
                parts = item.content if isinstance(item.content, list) else []
                thoughts = [each for each in parts if each.type in _THOUGHTS]
                said = [each for each in parts if each not in thoughts] if parts else item.content
                turn = self._open(unless=("texts",))
                turn.reasoning += [each.thinking or each.text or "" for each in thoughts]
                turn.texts += filter(None, [_text(said, f"{name}.content")])
            case role:
                text, shown = self._content(item, name)
                self.say("system" if role == "developer" else role, text, shown)

    def _open(self, unless: tuple[str, ...] = ()) -> _AssistantMessage:
        """The assistant's open message. If a field of `unless` is filled, begin a new message."""
        if self._turn is not None and any(getattr(self._turn, each) for each in unless):
            self._close()
        if self._turn is None:
            self._close()
            self._turn = _AssistantMessage()
        return self._turn

    def _close(self, *, results_follow: bool = False) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            self._messages.append(
                ChatMessage(
                    "assistant",
                    "".join(turn.texts),
                    reasoning="".join(turn.reasoning) or None,
                    tool_calls=tuple(turn.calls),
                )
            )
        if self._shown and not results_follow:
            self._messages.append(ChatMessage("user", _SHOWN, pictures=tuple(self._shown)))
            self._shown.clear()

    def _content(self, item: ItemBody, name: str) -> tuple[str, tuple[Picture, ...]]:
        """The text of an item, and its pictures with their places in the text."""
        if not isinstance(item.content, list):
            return _text(item.content, f"{name}.content"), ()
        text = ""
        shown = []
        for place, part in enumerate(item.content):
            path = f"{name}.content[{place}]"
            if part.type == "input_image" and not self._vision:
                text += f"\n{UNSEEN}\n"
            elif part.type == "input_image":
                shown.append(Picture(next(self._pictures), len(text), f"{path}.image_url"))
            else:
                text += _part_text(part, path)
        return text, tuple(shown)

    # Calls

    def _call(self, item: ItemBody, name: str, function: str, arguments: Any) -> None:
        call_id = item.call_id or (item.id if item.kind == "local_shell_call" else None)
        if call_id is None or not function:
            raise refused_at("is missing", f"{name}.{'name' if call_id else 'call_id'}")
        self._calls.add(call_id)
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments or {}).decode()
        self._open().calls.append(CalledTool(call_id, function, arguments.strip() or "{}"))

    def _result(self, item: ItemBody, name: str, text: str) -> None:
        # The result of a local shell has the id of its call as its own id.
        call_id = item.call_id or (item.id if item.kind == "local_shell_call_output" else None)
        if call_id is None:
            raise refused_at("is missing", f"{name}.call_id")
        if call_id not in self._calls:
            raise refused_at(f"there is no call {call_id[:100]!r} before it", f"{name}.call_id")
        self._close(results_follow=True)
        for place, part in enumerate(item.output if isinstance(item.output, list) else ()):
            if part.type == "input_image" and self._vision:
                path = f"{name}.output[{place}].image_url"
                self._shown.append(Picture(next(self._pictures), len(_SHOWN), path))
        if any(part.type == "input_image" for part in _parts(item.output)) and not self._vision:
            text += f"\n{UNSEEN}"
        self._messages.append(ChatMessage("tool", text, tool_call_id=call_id))

    # Tools

    def _add_tools(self, item: ItemBody, name: str) -> None:
        if self._turn is None and not self._messages:
            self._tools += described_tools(item.tools or (), f"{name}.tools")
        else:
            self.say("system", self._take_tools(item, name))

    def _take_tools(self, item: ItemBody, name: str) -> str:
        """Note the item's tools as late tools, and return the text that makes these callable from
        here on. Earlier messages stay the same, so they match the prompt cache.
        """
        found = list(described_tools(item.tools or (), f"{name}.tools"))
        self._late_tools += found
        functions = [template_function(each.function) for each in found]
        return _CALLABLE + msgspec.json.encode(functions).decode()


def _reasoning(item: ItemBody, name: str) -> str:
    """The text of the content, else of the summary, else of the reasoning that was sealed here."""
    for parts, place in ((item.content, "content"), (item.summary, "summary")):
        if parts:
            return _text(parts, f"{name}.{place}")
    return opened(item.encrypted_content or "")


def _output(item: ItemBody, name: str) -> str:
    return "" if item.output is None else _readable(item.output)


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
