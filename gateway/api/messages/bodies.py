"""Anthropic's messages, from a body to what a worker renders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Raw, Struct

from gateway.api.bodies import Part
from gateway.dispatch.refusal import Refusal
from protocol.messages import CalledTool, ChatMessage

_MOST_MESSAGES: Final = 200_000


class TextBlock(Part, tag="text"):
    text: str


class ToolUseBlock(Part, tag="tool_use"):
    id: str
    name: str
    input: Raw


class ToolResultBlock(Part, tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None


class ThinkingBlock(Part, tag="thinking"):
    """What was thought; nothing is proved by its `signature` here."""

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Part, tag="redacted_thinking"):
    """Nobody here can read it."""

    data: str = ""


Block: TypeAlias = (
    TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock
)


class MessageBody(Part):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Conversation(Struct):
    messages: Annotated[list[MessageBody], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None


def chat_messages(body: Conversation) -> tuple[ChatMessage, ...]:
    """Raises: Refusal: there are too many, or one of them can't stand where it is."""
    if len(body.messages) > _MOST_MESSAGES:
        raise Refusal(
            "context_length_exceeded",
            f"messages: there are {len(body.messages):,}; the prompt is too long for any model.",
            param="messages",
        )
    if body.messages[-1].role == "assistant":
        raise Refusal(
            "invalid_request_error",
            "messages: the last one is the assistant's, and an answer can't begin with given words "
            "here: end with a user's.",
            param="messages",
        )
    system = _joined(body.system)
    messages = [ChatMessage("system", system)] if system else []
    for index, each in enumerate(body.messages):
        if each.role == "assistant":
            messages.append(_assistants(index, each))
        elif each.role == "system":
            messages += (ChatMessage("system", told.content) for told in _users(index, each))
        else:
            messages += _users(index, each)
    return tuple(messages)


def _joined(content: str | list[TextBlock] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(each.text for each in content)


def _assistants(index: int, body: MessageBody) -> ChatMessage:
    if isinstance(body.content, str):
        return ChatMessage("assistant", body.content)
    texts, thoughts, calls = [], [], []
    for place, block in enumerate(body.content):
        match block:
            case TextBlock(text):
                texts.append(text)
            case ThinkingBlock(thinking):
                thoughts.append(thinking)
            case ToolUseBlock(id_, name, input_):
                calls.append(CalledTool(id_, name, bytes(input_).decode()))
            case ToolResultBlock():
                raise _misplaced(index, place, "tool_result", "a user's")
    return ChatMessage(
        "assistant", "".join(texts), reasoning="".join(thoughts) or None, tool_calls=tuple(calls)
    )


def _users(index: int, body: MessageBody) -> Iterator[ChatMessage]:
    """Results come before what the user says to them, as templates have it."""
    if isinstance(body.content, str):
        yield ChatMessage("user", body.content)
        return
    texts = []
    for place, block in enumerate(body.content):
        match block:
            case TextBlock(text):
                texts.append(text)
            case ToolResultBlock(tool_use_id, content, is_error):
                result = _joined(content)
                if is_error:
                    result = f"Error: {result}"
                yield ChatMessage("tool", result, tool_call_id=tool_use_id)
            case _:
                kind = str(type(block).__struct_config__.tag)
                raise _misplaced(index, place, kind, "an assistant's")
    if texts or not body.content:
        yield ChatMessage("user", "\n".join(texts))


def _misplaced(index: int, place: int, kind: str, whose: str) -> Refusal:
    param = f"messages.{index}.content.{place}"
    return Refusal(
        "invalid_request_error", f"{param}: {kind} belongs to {whose} message.", param=param
    )
