"""Anthropic's messages: their types, and how they become the messages that a worker renders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.http.bodies import AT, BodyPart
from gateway.http.errors import invalid
from gateway.http.pictures import UNSEEN, Source
from gateway.http.tools import FunctionBody, written
from gateway.system.refusal import Refusal
from protocol.requests import CalledTool, ChatMessage, Picture

# A line that Claude Code adds for billing, different in each conversation. At the beginning of a
# prompt it would keep the rest from being found in the prompt cache.
_BILLING: Final = re.compile(r"x-anthropic-billing-header:.*\s*")

_UNGIVEN: Final = "(Here is something that this model can't be given.)"
_UNREAD: Final = "(Here is a file such as a PDF, of which this model can't be given the text.)"
# The fields in which blocks of unknown types have texts, in the order in which they are read.
_READABLE: Final = (
    "title",
    "url",
    "source",
    "text",
    "content",
    "stdout",
    "stderr",
    "lines",
    "error_code",
)
_TYPE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class TextBlock(BodyPart, tag="text"):
    text: str


class ToolUseBlock(BodyPart, tag="tool_use"):
    id: str
    name: str
    input: Raw


class Base64Source(BodyPart, tag="base64"):
    data: str
    media_type: str = ""


class UrlSource(BodyPart, tag="url"):
    url: str


class TextSource(BodyPart, tag="text"):
    data: str


class ImageBlock(BodyPart, tag="image"):
    source: Base64Source | UrlSource


class DocumentBlock(BodyPart, tag="document"):
    """A document. Only its text is read; PDF files are not."""

    source: TextSource | Base64Source | UrlSource
    title: str | None = None
    context: str | None = None


class ToolReferenceBlock(BodyPart, tag="tool_reference"):
    """A deferred tool, which can be called from here on."""

    tool_name: str


class ForeignBlock(Struct):
    """A block of an unknown type: of Anthropic's server tools, or of a later API. `text` is the
    text found in it.
    """

    type: str
    text: str


ResultBlock: TypeAlias = TextBlock | ImageBlock | DocumentBlock | ToolReferenceBlock

if TYPE_CHECKING:
    ResultBlocks: TypeAlias = "list[ResultBlock | ForeignBlock]"
    Blocks: TypeAlias = "list[Block | ForeignBlock]"
else:
    # msgspec rejects unions with unknown tags, so each block is decoded by itself.
    _AnyBlock = Annotated[
        Raw,
        Meta(
            extra_json_schema={
                "type": "object",
                "properties": {"type": {"type": "string"}},
                "required": ["type"],
            }
        ),
    ]
    ResultBlocks = Blocks = list[_AnyBlock]


class ToolResultBlock(BodyPart, tag="tool_result"):
    tool_use_id: str
    content: str | ResultBlocks | None = None
    is_error: bool | None = None

    def __post_init__(self) -> None:
        if isinstance(self.content, list):
            self.content = _decoded(self.content, _RESULT_BLOCKS)


class ThinkingBlock(BodyPart, tag="thinking"):
    """Reasoning. Its `signature` is not checked."""

    thinking: str
    signature: str = ""


Block: TypeAlias = (
    TextBlock | ImageBlock | DocumentBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock
)

_BLOCKS: Final = msgspec.json.Decoder(Block)
_RESULT_BLOCKS: Final = msgspec.json.Decoder(ResultBlock)
_KNOWN: Final = {
    str(each.__struct_config__.tag) for each in (*get_args(Block), *get_args(ResultBlock))
}


class _Kind(Struct):
    type: str


_KIND: Final = msgspec.json.Decoder(_Kind)


def _decoded(blocks: Any, known: msgspec.json.Decoder[Any]) -> list[Any]:
    """Raises: ValueError: a block of a known type is malformed."""
    return [_block(each, known, place) for place, each in enumerate(blocks)]


def _block(block: Raw, known: msgspec.json.Decoder[Any], place: int) -> Any:
    try:
        kind = _KIND.decode(block).type
        if kind in _KNOWN:
            return known.decode(block)
    except msgspec.ValidationError as error:
        raise ValueError(f"{error}{AT}.content[{place}]`") from error
    return ForeignBlock(kind, "\n".join(_gather(msgspec.json.decode(block), [])))


def _gather(value: Any, texts: list[str]) -> list[str]:
    """The texts in a block of an unknown type, in order."""
    if isinstance(value, str) and value:
        texts.append(value)
    elif isinstance(value, list):
        for each in value:
            _gather(each, texts)
    elif isinstance(value, dict):
        # The data of a text document is text; other data is not.
        data = ("data",) if value.get("type") == "text" else ()
        for name in (*_READABLE, *data):
            _gather(value.get(name), texts)
    return texts


class AnthropicMessageBody(BodyPart):
    role: Literal["user", "assistant", "system"]
    content: str | Blocks

    def __post_init__(self) -> None:
        if isinstance(self.content, list):
            self.content = _decoded(self.content, _BLOCKS)


class AnthropicConversation(Struct):
    messages: Annotated[list[AnthropicMessageBody], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None


def references(body: AnthropicConversation) -> set[str]:
    """The names of the tools that results refer to."""
    return {each.tool_name for each in _blocks(body) if isinstance(each, ToolReferenceBlock)}


def unread(body: AnthropicConversation, *, vision: bool) -> set[str]:
    """The kinds of blocks that the model is not given, or not as text."""
    found = set()
    for each in _blocks(body):
        if isinstance(each, ImageBlock) and not vision:
            found.add("image")
        elif isinstance(each, DocumentBlock) and not isinstance(each.source, TextSource):
            found.add("document")
        elif isinstance(each, ForeignBlock) and not each.text:
            found.add(named(each.type, "block"))
    return found


def _blocks(body: AnthropicConversation) -> Iterator[Block | ResultBlock | ForeignBlock]:
    """The blocks of all messages; those within a result come behind the result."""
    for message in body.messages:
        for block in message.content if isinstance(message.content, list) else ():
            yield block
            if isinstance(block, ToolResultBlock) and isinstance(block.content, list):
                yield from block.content


def picture_sources(body: AnthropicConversation) -> list[Source]:
    """The pictures of all messages and results, in order."""
    return [
        Source(_url(block), name)
        for index, message in enumerate(body.messages)
        for block, name in _pictures(message, f"messages.{index}.content")
    ]


def _pictures(message: AnthropicMessageBody, path: str) -> Iterator[tuple[ImageBlock, str]]:
    """The pictures of a message as a worker gets them: those of results first."""
    if isinstance(message.content, str):
        return
    blocks = [(each, f"{path}.{place}") for place, each in enumerate(message.content)]
    for block, name in blocks:
        if isinstance(block, ToolResultBlock) and isinstance(block.content, list):
            for place, each in enumerate(block.content):
                if isinstance(each, ImageBlock):
                    yield each, f"{name}.content.{place}"
    for block, name in blocks:
        if isinstance(block, ImageBlock):
            yield block, name


def _url(block: ImageBlock) -> str:
    match block.source:
        case Base64Source(data):
            return f"data:;base64,{data}"
        case UrlSource(url):
            return url


def chat_messages(
    body: AnthropicConversation,
    pictures: Sequence[bytes] = (),
    *,
    vision: bool = True,
    deferred: Mapping[str, FunctionBody] | None = None,
) -> tuple[ChatMessage, ...]:
    """The messages as a worker renders them. `pictures` are the files of `picture_sources`. Without
    `vision` a note in the text stands for each picture. A `deferred` tool is described where a
    result first refers to it.

    Raises:
        Refusal: a message, or a block of one, can't stand where it is.
    """
    if body.messages[-1].role == "assistant":
        raise invalid(
            "messages: the last message is the assistant's, and answers can't be begun for the "
            "model here: end with a user's message.",
            "messages",
        )
    system = _joined(body.system)
    messages = [ChatMessage("system", system)] if system else []
    left = iter(pictures) if vision else None
    untold = dict(deferred or {})
    for index, each in enumerate(body.messages):
        if each.role == "assistant":
            messages.append(_assistants(index, each))
            continue
        said = _users(index, each, left, untold)
        if each.role == "system":
            messages += (ChatMessage("system", told.content) for told in said)
        else:
            messages += said
    return tuple(messages)


def _joined(content: str | list[TextBlock] | None) -> str:
    blocks = [TextBlock(content or "")] if not isinstance(content, list) else content
    return "\n".join(each.text for each in blocks if not _BILLING.fullmatch(each.text))


def _assistants(index: int, body: AnthropicMessageBody) -> ChatMessage:
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
            case ForeignBlock(kind, text) if text:
                texts.append(f"\n({kind}:\n{text})\n")
            case ToolResultBlock() | ImageBlock() | DocumentBlock():
                kind = str(type(block).__struct_config__.tag)
                raise _misplaced(index, place, kind, "a user's")
    return ChatMessage(
        "assistant", "".join(texts), reasoning="".join(thoughts) or None, tool_calls=tuple(calls)
    )


def _users(
    index: int,
    body: AnthropicMessageBody,
    pictures: Iterator[bytes] | None,
    untold: dict[str, FunctionBody],
) -> Iterator[ChatMessage]:
    """The messages of a user. Results come before the user's text, as chat templates expect.
    Templates allow no pictures in results, so those belong to the user's message. `pictures` None:
    the model has no vision.
    """
    if isinstance(body.content, str):
        yield ChatMessage("user", body.content)
        return
    path = f"messages.{index}.content"
    shown = None
    if pictures is not None:
        shown = [(next(pictures), name) for _, name in _pictures(body, path)]
    said = _UserMessage(shown, untold)
    if said.pictures and body.role != "user":
        raise _misplaced(index, 0, "image", "a user's")
    for block in body.content:
        if isinstance(block, ToolResultBlock):
            result = said.result(block)
            yield ChatMessage("tool", result, tool_call_id=block.tool_use_id)
    for place, block in enumerate(body.content):
        match block:
            case TextBlock(text):
                said.add(text)
            case DocumentBlock():
                said.add(_document(block))
            case ImageBlock():
                if not said.show():
                    said.add(UNSEEN)
            case ForeignBlock(_, text):
                said.add(text or _UNGIVEN)
            case ToolResultBlock():
                pass
            case _:
                kind = str(type(block).__struct_config__.tag)
                raise _misplaced(index, place, kind, "an assistant's")
    if said.texts or said.shown or not body.content:
        yield ChatMessage("user", "\n".join(said.texts), pictures=tuple(said.shown))


def _document(block: DocumentBlock) -> str:
    about = filter(None, (block.title, block.context))
    text = block.source.data if isinstance(block.source, TextSource) else _UNREAD
    return "\n".join((*about, text))


class _UserMessage:
    """The text and the pictures of a user's message while it is put together."""

    def __init__(
        self, pictures: list[tuple[bytes, str]] | None, untold: dict[str, FunctionBody]
    ) -> None:
        """`pictures` are files with their names, in the order in which they are shown; None: the
        model has no vision. Tools that are described are removed from `untold`.
        """
        self.pictures = pictures
        self.texts: list[str] = []
        self.shown: list[Picture] = []
        self._untold = untold
        self._length = 0

    def add(self, text: str) -> None:
        # One more for the line break before the text.
        self._length += len(text) + bool(self.texts)
        self.texts.append(text)

    def show(self) -> bool:
        """Place the next picture behind the text so far. False: the model has no vision."""
        if self.pictures is None:
            return False
        data, name = self.pictures[len(self.shown)]
        self.shown.append(Picture(data, self._length, name))
        return True

    def _told(self, names: Sequence[str]) -> str:
        """The text that makes tools callable. Each tool is described once, since its description is
        long.
        """
        new = [written(self._untold.pop(each)) for each in names if each in self._untold]
        told = f"These functions can be called from now on: {', '.join(names)}"
        return f"{told}\n{msgspec.json.encode(new).decode()}" if new else told

    def result(self, block: ToolResultBlock) -> str:
        """The text of a result. Its pictures are placed."""
        if block.content is None or isinstance(block.content, str):
            text = block.content or ""
        else:
            texts = []
            called = []
            for each in block.content:
                match each:
                    case TextBlock(said):
                        texts.append(said)
                    case DocumentBlock():
                        texts.append(_document(each))
                    case ImageBlock():
                        if not self.show():
                            texts.append(UNSEEN)
                    case ForeignBlock(_, text):
                        texts.append(text or _UNGIVEN)
                    case ToolReferenceBlock(name):
                        called.append(name)
            if called:
                texts.append(self._told(called))
            text = "\n".join(texts)
        return f"Error: {text}" if block.is_error else text


def _misplaced(index: int, place: int, kind: str, whose: str) -> Refusal:
    param = f"messages.{index}.content.{place}"
    return invalid(f"{param}: {kind} belongs to {whose} message.", param)


def named(kind: str, otherwise: str) -> str:
    """A type as a header may have it; `otherwise` if it has other characters."""
    return kind if _TYPE.fullmatch(kind) else otherwise
