"""The items of a conversation, from a body to what a worker renders, and to what is stored."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct

from gateway.api.bodies import Part, take_decoded
from gateway.dispatch.refusal import Refusal
from gateway.edge.share import Share
from gateway.pictures.source import Source
from protocol.pictures import Picture
from protocol.prompts import CalledTool, ChatMessage

_MOST_ITEMS: Final = 200_000
_TEXTS: Final = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
# What a client sends back of a reasoning that it didn't read. Nothing about it is secret.
_SEALED: Final = "bulkhead:"


class ContentBody(Part, omit_defaults=True):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None


class ItemBody(Part, omit_defaults=True):
    """Of every type that there is here; a message needs none."""

    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[ContentBody] | None = None
    summary: list[ContentBody] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ContentBody] | None = None

    @property
    def kind(self) -> str:
        return self.type or "message"


def check_number(body: str | list[ItemBody] | None, before: Sequence[ItemBody]) -> None:
    """`before` goes before them. Raises: Refusal: there are too many, or none."""
    count = len(before) + (1 if isinstance(body, str) else len(body or ()))
    if count == 0:
        raise Refusal(
            "invalid_request_error",
            "input is missing: send a text, or a list of items.",
            param="input",
        )
    if count > _MOST_ITEMS:
        raise Refusal(
            "context_length_exceeded",
            f"input: there are {count:,} items, more than any model here takes.",
            param="input",
        )


def own_items(body: str | list[ItemBody] | None, suffix: str) -> list[ItemBody]:
    """Those of a body, as they are stored: each with a type and an id, which ends in `suffix`."""
    if isinstance(body, str):
        body = [ItemBody(role="user", content=[ContentBody("input_text", body)])]
    for number, item in enumerate(body or ()):
        item.type = item.kind
        prefix = _PREFIXES.get(item.type, "item")
        item.id = item.id or f"{prefix}_{suffix}{number:04x}"
        if item.type == "message":
            item.status = item.status or "completed"
            if isinstance(item.content, str):
                kind = "output_text" if item.role == "assistant" else "input_text"
                item.content = [ContentBody(kind, item.content)]
    return body or []


_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
}


def sealed(reasoning: str) -> str:
    return base64.b64encode((_SEALED + reasoning).encode()).decode()


def _opened(sealed: str) -> str:
    """Empty if another server has sealed it."""
    try:
        text = base64.b64decode(sealed, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
    return text.removeprefix(_SEALED) if text.startswith(_SEALED) else ""


def picture_sources(items: Sequence[ItemBody], names: Sequence[str]) -> list[tuple[int, Source]]:
    """Where the pictures of all items are, in order, each with the place of its item.

    Raises:
        Refusal: one is where none can be.
    """
    found = []
    for index, (item, name) in enumerate(zip(items, names, strict=True)):
        for place, part in enumerate(item.content if isinstance(item.content, list) else ()):
            if part.type != "input_image":
                continue
            path = f"{name}.content[{place}].image_url"
            if part.image_url is None:
                raise _refusal("is missing: files are not supported, send an address", path)
            if item.role != "user":
                raise _refusal("only a user's message may have pictures", path)
            found.append((index, Source(part.image_url, path)))
    return found


def chat_messages(
    instructions: str | None,
    items: Sequence[ItemBody],
    names: Sequence[str],
    pictures: Sequence[bytes] = (),
) -> tuple[ChatMessage, ...]:
    """`names` is what errors call the items; `pictures` are those of `picture_sources`.

    Raises:
        Refusal: one of them can't be understood.
    """
    conversation = _Conversation(iter(pictures))
    if instructions:
        conversation.say("system", instructions)
    for item, name in zip(items, names, strict=True):
        conversation.add(item, name)
    return conversation.messages()


class _Turn(Struct):
    """An assistant's message as it comes together from items."""

    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[CalledTool] = []


class _Conversation:
    def __init__(self, pictures: Iterator[bytes]) -> None:
        self._messages: list[ChatMessage] = []
        # What the system says first: many templates take one message of it, at the beginning.
        self._system: list[str] = []
        self._pictures = pictures
        self._turn: _Turn | None = None
        self._calls: set[str] = set()

    def messages(self) -> tuple[ChatMessage, ...]:
        self._close()
        begin = [ChatMessage("system", "\n\n".join(self._system))] if self._system else []
        return (*begin, *self._messages)

    def add(self, item: ItemBody, name: str) -> None:
        match item:
            case ItemBody(role="assistant") if item.kind == "message":
                self._say_assistants(_text(item.content, f"{name}.content"))
            case ItemBody(role=str() as role) if item.kind == "message":
                text, shown = self._content(item, name)
                self.say("system" if role == "developer" else role, text, shown)
            case ItemBody(type="reasoning"):
                turn = self._open(unless=("texts", "calls"))
                turn.reasoning += filter(None, [_reasoning(item, name)])
            case ItemBody(type="function_call", call_id=str() as call_id, name=str() as function):
                self._calls.add(call_id)
                call = CalledTool(call_id, function, (item.arguments or "").strip() or "{}")
                self._open().calls.append(call)
            case ItemBody(type="function_call_output", call_id=str() as call_id):
                if call_id not in self._calls:
                    raise _refusal(
                        f"there is no call {call_id[:100]!r} before it", f"{name}.call_id"
                    )
                self._close()
                output = _text(item.output, f"{name}.output")
                self._messages.append(ChatMessage("tool", output, tool_call_id=call_id))
            case ItemBody(type="function_call" | "function_call_output"):
                missing = "name" if item.call_id else "call_id"
                raise _refusal("is missing", f"{name}.{missing}")
            case _ if item.kind == "message":
                raise _refusal("is missing", f"{name}.role")
            case _:
                raise _refusal(
                    f"items of type {item.kind[:100]!r} are not supported: send messages, "
                    "reasoning, function calls and their outputs",
                    f"{name}.type",
                )

    def say(self, role: str, text: str, pictures: tuple[Picture, ...] = ()) -> None:
        self._close()
        if role == "system" and not self._messages:
            self._system.append(text)
        else:
            self._messages.append(ChatMessage(role, text, pictures=pictures))

    def _say_assistants(self, text: str) -> None:
        self._open(unless=("texts",)).texts += filter(None, [text])

    def _open(self, unless: tuple[str, ...] = ()) -> _Turn:
        """The assistant's present message; another one if this has some of these already."""
        if self._turn is not None and any(getattr(self._turn, each) for each in unless):
            self._close()
        if self._turn is None:
            self._turn = _Turn()
        return self._turn

    def _close(self) -> None:
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

    def _content(self, item: ItemBody, name: str) -> tuple[str, tuple[Picture, ...]]:
        """Texts, and the pictures between them."""
        if not isinstance(item.content, list):
            return _text(item.content, f"{name}.content"), ()
        text = ""
        shown = []
        for place, part in enumerate(item.content):
            path = f"{name}.content[{place}]"
            if part.type == "input_image":
                shown.append(Picture(next(self._pictures), len(text), f"{path}.image_url"))
            else:
                text += _part_text(part, path)
        return text, tuple(shown)


def _reasoning(item: ItemBody, name: str) -> str:
    """What was thought, if it is there to read, else its summary."""
    for parts, place in ((item.content, "content"), (item.summary, "summary")):
        if parts:
            return _text(parts, f"{name}.{place}")
    return _opened(item.encrypted_content or "")


def _text(content: str | list[ContentBody] | None, path: str) -> str:
    if content is None:
        raise _refusal("is missing: send a text, which may be empty", path)
    if isinstance(content, str):
        return content
    return "".join(_part_text(part, f"{path}[{place}]") for place, part in enumerate(content))


def _part_text(part: ContentBody, path: str) -> str:
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type not in _TEXTS:
        raise _refusal(
            f"a part of type {part.type[:100]!r} is not supported here: send texts, and pictures "
            "in a user's message",
            path,
        )
    if part.text is None:
        raise _refusal("is missing: send a text, which may be empty", f"{path}.text")
    return part.text


def _refusal(reason: str, param: str) -> Refusal:
    separator = " " if reason.startswith("is ") else ": "
    return Refusal("invalid_request_error", f"{param}{separator}{reason}.", param=param)


def encode_items(items: Sequence[ItemBody]) -> bytes:
    return msgspec.json.encode(items)


def decode_items(data: bytes, share: Share) -> list[ItemBody]:
    """Raises: Refusal: the share has no room for them."""
    take_decoded(share, data)
    return msgspec.json.decode(data or b"[]", type=list[ItemBody])
