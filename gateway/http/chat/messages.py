"""The messages of a conversation, from a body to what a worker renders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, Literal

from gateway.http.bodies import Part
from gateway.http.left_out import UNSEEN, newest
from gateway.http.pictures.source import Source
from gateway.http.supported import check_supported, refusing
from gateway.system.refusal import Refusal
from protocol.pictures import Picture
from protocol.prompts import CalledTool, ChatMessage

_PICTURES: Final = ("image_url", "input_image")
# Each takes some tokens in every template.
_MOST_MESSAGES: Final = 200_000


class ImageUrl(Part):
    """Its detail is for OpenAI's models."""

    url: str


@refusing("part")
class ContentPart(Part):
    """Pictures are of type image_url; of type input_image, as in OpenAI's Responses, the address
    stands alone.
    """

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None

    @property
    def picture(self) -> str | None:
        """The address of one."""
        if self.type not in _PICTURES:
            return None
        return self.image_url.url if isinstance(self.image_url, ImageUrl) else self.image_url


class CalledFunction(Part):
    name: str
    arguments: str | None = None


class ToolCallBody(Part):
    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"


@refusing("message")
class MessageBody(Part):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None


def check_number(bodies: list[MessageBody]) -> None:
    """Before anything is done with them.

    Raises:
        Refusal: there are too many.
    """
    if len(bodies) > _MOST_MESSAGES:
        raise Refusal(
            "context_length_exceeded",
            f"messages: there are {len(bodies):,}, more than any model here takes.",
            param="messages",
        )


def left_out(bodies: list[MessageBody]) -> set[str]:
    """What a model that can't look at pictures isn't given."""
    parts = chain.from_iterable(each.content for each in bodies if isinstance(each.content, list))
    return {"image"} if any(each.type in _PICTURES for each in parts) else set()


def picture_sources(bodies: list[MessageBody], *, looks: bool = True) -> list[Source]:
    """Where the pictures of all messages are, in order; those of the newest, if nobody `looks`.

    Raises:
        Refusal: one is where none can be.
    """
    found = []
    new = newest([each.role for each in bodies])
    for index, body in enumerate(bodies):
        for place, part in enumerate(body.content if isinstance(body.content, list) else ()):
            if part.type not in _PICTURES:
                continue
            name = f"messages[{index}].content[{place}].image_url"
            if part.picture is None:
                raise Refusal(
                    "invalid_request_error",
                    f"{name} is missing: send an object with a url.",
                    param=name,
                )
            if body.role != "user":
                raise Refusal(
                    "invalid_request_error",
                    f"{name}: only a user's message may have pictures.",
                    param=name,
                )
            if looks or index in new:
                found.append(Source(part.picture, name))
    return found


def chat_messages(
    bodies: list[MessageBody], pictures: Sequence[bytes] = (), *, looks: bool = True
) -> tuple[ChatMessage, ...]:
    """`pictures` are those of `picture_sources`. A model that doesn't look at any is told of them.

    Raises:
        Refusal: one of them can't be understood.
    """
    left = iter(pictures) if looks else None
    return tuple(_message(index, each, left) for index, each in enumerate(bodies))


def _message(index: int, body: MessageBody, pictures: Iterator[bytes] | None) -> ChatMessage:
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
    content, shown = _content(path, body, pictures)
    return ChatMessage(
        # Templates know the role by its older name.
        "system" if body.role == "developer" else body.role,
        content,
        reasoning=body.reasoning_content or body.reasoning or None,
        tool_calls=tuple(
            CalledTool(each.id or "", each.function.name, _arguments(each.function))
            for each in body.tool_calls or ()
        ),
        tool_call_id=body.tool_call_id,
        name=body.name,
        pictures=shown,
    )


def _arguments(body: CalledFunction) -> str:
    return (body.arguments or "").strip() or "{}"


def _content(
    path: str, body: MessageBody, pictures: Iterator[bytes] | None
) -> tuple[str, tuple[Picture, ...]]:
    """Texts, and the pictures between them; a refusal is what the assistant said instead of one."""
    if not isinstance(body.content, list):
        return body.content or body.refusal or "", ()
    texts: list[str] = []
    shown = []
    length = 0
    for place, part in enumerate(body.content):
        check_supported(part, "part", f"{path}content[{place}].")
        match part.type, part.text, part.refusal:
            case "text", str() as text, _:
                texts.append(text)
            case "refusal", _, str() as text:
                texts.append(text)
            case "text", None, _:
                raise Refusal(
                    "invalid_request_error",
                    f"{path}content[{place}].text is missing: send a text, which may be empty.",
                    param=f"{path}content[{place}].text",
                )
            case (("image_url" | "input_image"), _, _) if pictures is not None:
                shown.append(Picture(next(pictures), length, f"{path}content[{place}].image_url"))
                continue
            case (("image_url" | "input_image"), _, _):
                text = f"\n{UNSEEN}\n"
                texts.append(text)
            case _:
                raise Refusal(
                    "invalid_request_error",
                    f"A content part of type {part.type!r}: only text and image_url are supported.",
                    param=f"{path}content[{place}]",
                )
        length += len(text)
    return "".join(texts), tuple(shown)
