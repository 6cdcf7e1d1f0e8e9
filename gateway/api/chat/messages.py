"""The messages of a conversation, from a body to what a worker renders."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from gateway.api.bodies import Part
from gateway.api.supported import check_supported, refusing
from gateway.dispatch.refusal import Refusal
from protocol.messages import CalledTool, ChatMessage

# Each takes some tokens in every template.
_MOST_MESSAGES: Final = 200_000


@refusing("part")
class ContentPart(Part):
    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(Part):
    name: str
    arguments: str = "{}"


class ToolCallBody(Part):
    function: CalledFunction
    id: str = ""
    type: Literal["function"] = "function"


@refusing("message")
class MessageBody(Part):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Meta(min_length=1)] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None


def chat_messages(bodies: list[MessageBody]) -> tuple[ChatMessage, ...]:
    """Raises: Refusal: there are too many, or one of them can't be understood."""
    if len(bodies) > _MOST_MESSAGES:
        raise Refusal(
            "context_length_exceeded",
            f"messages: there are {len(bodies):,}, more than any model here takes.",
            param="messages",
        )
    return tuple(_message(index, each) for index, each in enumerate(bodies))


def _message(index: int, body: MessageBody) -> ChatMessage:
    path = f"messages[{index}]."
    check_supported(body, "message", path)
    if body.content is None and body.role != "assistant":
        raise Refusal(
            "invalid_request_error",
            f"{path}content is missing or null: only an assistant's message may have none. Send a "
            "text, which may be empty.",
            param=f"{path}content",
        )
    if body.tool_calls and body.role != "assistant":
        raise Refusal(
            "invalid_request_error",
            f"{path}tool_calls: only an assistant's message has calls.",
            param=f"{path}tool_calls",
        )
    return ChatMessage(
        # Templates know the role by its older name.
        "system" if body.role == "developer" else body.role,
        _content(path, body),
        reasoning=body.reasoning_content or body.reasoning or None,
        tool_calls=tuple(
            CalledTool(each.id, each.function.name, each.function.arguments.strip() or "{}")
            for each in body.tool_calls or ()
        ),
        tool_call_id=body.tool_call_id,
        name=body.name,
    )


def _content(path: str, body: MessageBody) -> str:
    """Texts; a refusal is what the assistant said instead of one."""
    if not isinstance(body.content, list):
        return body.content or body.refusal or ""
    texts = []
    for place, part in enumerate(body.content):
        check_supported(part, "part", f"{path}content[{place}].")
        match part.type, part.text, part.refusal:
            case "text", str() as text, _:
                texts.append(text)
            case "refusal", _, str() as text:
                texts.append(text)
            case _:
                raise Refusal(
                    "invalid_request_error",
                    f"A content part of type {part.type!r}: only text parts are supported.",
                    param=f"{path}content[{place}]",
                )
    return "".join(texts)
