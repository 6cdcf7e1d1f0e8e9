"""The items of a conversation, as a body has them, and as they are stored."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from gateway.http.bodies import Part, take_decoded
from gateway.http.left_out import newest
from gateway.http.pictures.source import Source
from gateway.http.responses.tools import Tool
from gateway.requests.share import Share
from gateway.system.refusal import Refusal

_MOST_ITEMS: Final = 200_000
# What a client sends back of a reasoning or a summary that it didn't read. Nothing about it is
# secret.
_SEALED: Final = "bulkhead:"


BRINGS_TOOLS: Final = ("additional_tools", "tool_search_output")
OUTPUTS: Final = (
    "function_call_output",
    "custom_tool_call_output",
    "local_shell_call_output",
    "tool_search_output",
)


class ContentBody(Part, omit_defaults=True):
    type: str = ""
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None


class ItemBody(Part, omit_defaults=True):
    """Of every type, also of those that nobody here knows; a message needs none."""

    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[ContentBody] | None = None
    summary: list[ContentBody] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Any = None
    input: Any = None
    action: Any = None
    output: str | list[ContentBody] | ContentBody | None = None
    tools: list[Tool] | None = None
    author: str | None = None
    recipient: str | None = None

    @property
    def kind(self) -> str:
        return self.type or "message"

    @property
    def is_output(self) -> bool:
        return self.kind in OUTPUTS

    @property
    def speaker(self) -> str:
        return self.role or ("tool" if self.is_output else "assistant")

    @property
    def pictures(self) -> list[tuple[str, ContentBody]]:
        """Those of a message or an output, each with its place in the item."""
        field = "output" if self.is_output else "content"
        parts = getattr(self, field)
        return [
            (f"{field}[{place}].image_url", part)
            for place, part in enumerate(parts if isinstance(parts, list) else ())
            if part.type == "input_image"
        ]

    @property
    def summed_up(self) -> str | None:
        """What stands for all that came before; None: that isn't here to read."""
        if self.kind != "compaction":
            return None
        return opened(self.encrypted_content or "") or None


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
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "compaction": "cmp",
}


def sealed(reasoning: str) -> str:
    return base64.b64encode((_SEALED + reasoning).encode()).decode()


def opened(sealed: str) -> str:
    """Empty if another server has sealed it."""
    try:
        text = base64.b64decode(sealed, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
    return text.removeprefix(_SEALED) if text.startswith(_SEALED) else ""


def without_superseded(
    items: Sequence[ItemBody], names: Sequence[str]
) -> tuple[list[ItemBody], list[str]]:
    """Of what was summed up only messages of users and of the system are left, and tools."""
    last = max((place for place, each in enumerate(items) if each.summed_up), default=0)
    left = [
        place
        for place, each in enumerate(items)
        if place >= last or each.role not in (None, "assistant")
    ]
    return [items[each] for each in left], [names[each] for each in left]


def left_out(items: Sequence[ItemBody]) -> set[str]:
    """What a model that can't look at pictures isn't given."""
    return {"image"} if any(each.pictures for each in items) else set()


def picture_sources(
    items: Sequence[ItemBody], names: Sequence[str], *, looks: bool = True
) -> list[tuple[int, Source]]:
    """Where the pictures of all items are, in order, each with the place of its item; those of the
    newest message, if nobody `looks`.

    Raises:
        Refusal: one is where none can be.
    """
    found = []
    for index in range(len(items)) if looks else newest([each.speaker for each in items]):
        item, name = items[index], names[index]
        for place, part in item.pictures:
            path = f"{name}.{place}"
            if part.image_url is None:
                raise refused_at("is missing: files are not supported, send an address", path)
            if not item.is_output and item.role != "user":
                raise refused_at("only a user's message may have pictures", path)
            found.append((index, Source(part.image_url, path)))
    return found


def refused_at(reason: str, param: str) -> Refusal:
    separator = " " if reason.startswith("is ") else ": "
    return Refusal("invalid_request_error", f"{param}{separator}{reason}.", param=param)


def encode_items(items: Sequence[ItemBody]) -> bytes:
    return msgspec.json.encode(items)


def decode_items(data: bytes, share: Share) -> list[ItemBody]:
    """Raises: Refusal: the share has no room for them."""
    take_decoded(share, data)
    return msgspec.json.decode(data or b"[]", type=list[ItemBody])
