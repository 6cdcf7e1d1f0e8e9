"""Items and tools of a response: their types, checks, and how items are stored."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct

from gateway.http.generation.generation import check_number
from gateway.http.generation.pictures import Source, newest
from gateway.http.generation.tools import FunctionBody
from gateway.http.wire.bodies import ABSENT, BodyPart, given, take_decoded
from gateway.http.wire.errors import invalid
from gateway.requests.share import Share
from gateway.system.refusal import Refusal

Kind: TypeAlias = Literal["function", "custom", "tool_search", "local_shell"]

_TEXT: Final = Raw(
    b'{"type":"object","properties":{"input":{"type":"string"}},'
    b'"required":["input"],"additionalProperties":false}'
)
_COMMAND: Final = Raw(
    b'{"type":"object","properties":{'
    b'"command":{"type":"array","items":{"type":"string"}},'
    b'"working_directory":{"type":"string"},"timeout_ms":{"type":"integer"},'
    b'"env":{"type":"object","additionalProperties":{"type":"string"}}},'
    b'"required":["command"],"additionalProperties":false}'
)


class Tool(BodyPart, omit_defaults=True):
    """A tool of any type. A namespace has `tools`, the input of a custom tool has a `format`."""

    type: str = ""
    name: str | None = None
    description: str | None = None
    parameters: Raw = ABSENT
    strict: bool | None = None
    format: Raw = ABSENT
    tools: list[Tool] | None = None
    execution: str | None = None
    defer_loading: bool | None = None


class _CustomFormat(Struct):
    type: str = "text"
    syntax: str = ""
    definition: str = ""


class CallMeaning(Struct, frozen=True):
    """The tool of the client that is called when the model calls a function."""

    kind: Kind
    name: str
    namespace: str | None = None


class DescribedTool(Struct, frozen=True):
    """A tool as a function for the model, the meaning of its calls, and its path in the body."""

    function: FunctionBody
    meaning: CallMeaning
    path: str


def function_name(namespace: str | None, name: str) -> str:
    return name if namespace is None else f"{namespace}__{name}"


def runs_here(tool: Tool) -> bool:
    """Whether the client runs the tool. Other tools run at OpenAI."""
    if tool.type == "tool_search":
        return tool.execution == "client"
    return tool.type in ("function", "custom", "namespace", "local_shell")


def described_tools(
    tools: Iterable[Tool], path: str, namespace: str | None = None
) -> Iterator[DescribedTool]:
    """The tools as functions for a model. Tools that the client can't run are skipped.

    Raises:
        Refusal: a tool has no type or no name, or its format can't be read.
    """
    for index, tool in enumerate(tools):
        at = f"{path}[{index}]"
        if not tool.type:
            raise _missing(f"{at}.type")
        if not runs_here(tool):
            continue
        if tool.type == "namespace":
            yield from described_tools(tool.tools or (), f"{at}.tools", _name(tool, at))
            continue
        meaning = CallMeaning("function", _name(tool, at), namespace)
        name = function_name(namespace, meaning.name)
        function = FunctionBody(name, tool.description, tool.parameters, tool.strict)
        match tool.type:
            case "custom":
                meaning = msgspec.structs.replace(meaning, kind="custom")
                function = FunctionBody(name, _described(tool, at), _TEXT)
            case "tool_search":
                meaning = msgspec.structs.replace(meaning, kind="tool_search")
            case "local_shell":
                meaning = msgspec.structs.replace(meaning, kind="local_shell")
                about = "Runs a command, given as a list of words, on the user's machine."
                function = FunctionBody(name, about, _COMMAND)
        yield DescribedTool(function, meaning, at)


def _name(tool: Tool, path: str) -> str:
    if tool.type in ("tool_search", "local_shell"):
        return tool.type
    if tool.name is None:
        raise _missing(f"{path}.name")
    return tool.name


def _described(tool: Tool, path: str) -> str:
    """The description of a custom tool. The grammar of its input is described, but not enforced."""
    about = [tool.description] if tool.description else []
    if given(tool.format):
        try:
            asked = msgspec.json.decode(tool.format, type=_CustomFormat)
        except (msgspec.MsgspecError, RecursionError) as error:
            param = f"{path}.format"
            raise invalid(f"{param} can't be read: {error}.", param) from error
        if asked.type == "grammar":
            about.append(f"The input matches this {asked.syntax} grammar:\n{asked.definition}")
    return "\n\n".join(about)


def _missing(param: str) -> Refusal:
    return invalid(f"{param} is missing.", param)


# The beginning of a sealed text. Clients send reasoning and summaries back in this form, unread.
# The form is encoded, but not secret.
_SEALED: Final = "bulkhead:"


BRINGS_TOOLS: Final = ("additional_tools", "tool_search_output")
OUTPUTS: Final = (
    "function_call_output",
    "custom_tool_call_output",
    "local_shell_call_output",
    "tool_search_output",
)


class ContentBody(BodyPart, omit_defaults=True):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None


class ItemBody(BodyPart, omit_defaults=True):
    """An item of any type, known or unknown. Without a type it is a message."""

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
        """The pictures of a message or an output, each with its path in the item."""
        field = "output" if self.is_output else "content"
        parts = getattr(self, field)
        return [
            (f"{field}[{place}].image_url", part)
            for place, part in enumerate(parts if isinstance(parts, list) else ())
            if part.type == "input_image"
        ]

    @property
    def summed_up(self) -> str | None:
        """The summary of all earlier items. None: no summary, or a summary of another server."""
        if self.kind != "compaction":
            return None
        return opened(self.encrypted_content or "") or None


def check_items(body: str | list[ItemBody] | None, before: Sequence[ItemBody]) -> None:
    """`before` are items of earlier responses. Raises: Refusal: no items, or too many items."""
    count = len(before) + (1 if isinstance(body, str) else len(body or ()))
    if count == 0:
        raise invalid("input is missing: send a text, or a list of items.", "input")
    check_number(count, "input")


def own_items(body: str | list[ItemBody] | None, suffix: str) -> list[ItemBody]:
    """The items of a body, changed for the mailbox: each item gets its type, and an item without an
    id gets an id made from `suffix` and the item's place.
    """
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
    """The text that is encoded in `sealed`. Empty: another server has encoded it."""
    try:
        text = base64.b64decode(sealed, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
    return text.removeprefix(_SEALED) if text.startswith(_SEALED) else ""


def without_superseded(
    items: Sequence[ItemBody], names: Sequence[str]
) -> tuple[list[ItemBody], list[str]]:
    """The items, and their names, without the items that the last summary replaces. Before the
    summary only messages of users and of the system stay.
    """
    last = max((place for place, each in enumerate(items) if each.summed_up), default=0)
    left = [
        place
        for place, each in enumerate(items)
        if place >= last or each.role not in (None, "assistant")
    ]
    return [items[each] for each in left], [names[each] for each in left]


def left_out(items: Sequence[ItemBody]) -> set[str]:
    """The kinds of parts that a model without vision doesn't get."""
    return {"image"} if any(each.pictures for each in items) else set()


def picture_sources(
    items: Sequence[ItemBody], names: Sequence[str], *, vision: bool = True
) -> list[tuple[int, Source]]:
    """The addresses of the pictures of all items, in order, each with the place of its item.
    Without `vision` only the pictures of the newest user message are listed: a model without vision
    refuses these.

    Raises:
        Refusal: a picture has no address, or is in an item that can't have pictures.
    """
    found = []
    for index in range(len(items)) if vision else newest([each.speaker for each in items]):
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
    return invalid(f"{param}{separator}{reason}.", param)


def encode_items(items: Sequence[ItemBody]) -> bytes:
    return msgspec.json.encode(items)


def decode_items(data: bytes, share: Share) -> list[ItemBody]:
    """Raises: Refusal: the share has no room for the items."""
    take_decoded(share, data)
    return msgspec.json.decode(data or b"[]", type=list[ItemBody])
