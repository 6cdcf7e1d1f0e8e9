"""The types of Anthropic's messages. Turns these into the messages that a worker renders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.http.generation.pictures import UNSEEN, Source, named
from gateway.http.generation.tools import FunctionBody, template_function
from gateway.http.wire.bodies import AT, BodyPart
from gateway.http.wire.errors import invalid
from gateway.system.refusal import Refusal
from protocol.requests import CalledTool, ChatMessage, Picture

# A line that Claude Code adds at the beginning of the prompt, for billing. The line differs in each
# conversation, so with this line no prompt would match the prompt cache.
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
    """A document. Only a document with a text source is read; a PDF file is not."""

    source: TextSource | Base64Source | UrlSource
    title: str | None = None
    context: str | None = None


class ToolReferenceBlock(BodyPart, tag="tool_reference"):
    """The name of a deferred tool. The model may call the tool from this block on."""

    tool_name: str


class ForeignBlock(Struct):
    """A block whose type is unknown here: it belongs to Anthropic's server tools, or to a later
    version of the API. `text` joins the texts in the block.
    """

    type: str
    text: str


ResultBlock: TypeAlias = TextBlock | ImageBlock | DocumentBlock | ToolReferenceBlock

# msgspec refuses a value whose tag is in no type of a union, so each block is decoded by itself.
AnyBlock = Annotated[
    Raw,
    Meta(
        extra_json_schema={
            "type": "object",
            "properties": {"type": {"type": "string"}},
            "required": ["type"],
        }
    ),
]


class ToolResultBlock(BodyPart, tag="tool_result"):
    tool_use_id: str
    content: str | list[AnyBlock] | None = None
    is_error: bool | None = None

    def __post_init__(self) -> None:
        if isinstance(self.content, list):
            self.content = _decoded(self.content, _RESULT_BLOCKS)

    @property
    def blocks(self) -> list[ResultBlock | ForeignBlock]:
        return _as_blocks(self.content)


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


def _as_blocks(content: str | list[Any] | None) -> list[Any]:
    """The decoded blocks of a content. A text is one block."""
    return [TextBlock(content)] if isinstance(content, str) else content or []


class _Kind(Struct):
    type: str


_KIND: Final = msgspec.json.Decoder(_Kind)


def _decoded(blocks: Any, known: msgspec.json.Decoder[Any]) -> list[Any]:
    """Raises: ValueError: a block has no type, or has a known type and is malformed."""
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
    """Append the texts in a block of an unknown type to `texts`, in order, and return `texts`."""
    if isinstance(value, str) and value:
        texts.append(value)
    elif isinstance(value, list):
        for each in value:
            _gather(each, texts)
    elif isinstance(value, dict):
        # Only in a source of type text is `data` a text.
        data = ("data",) if value.get("type") == "text" else ()
        for name in (*_READABLE, *data):
            _gather(value.get(name), texts)
    return texts


class AnthropicMessageBody(BodyPart):
    role: Literal["user", "assistant", "system"]
    content: str | list[AnyBlock]

    def __post_init__(self) -> None:
        if isinstance(self.content, list):
            self.content = _decoded(self.content, _BLOCKS)

    @property
    def blocks(self) -> list[Block | ForeignBlock]:
        return _as_blocks(self.content)


class AnthropicConversation(Struct):
    messages: Annotated[list[AnthropicMessageBody], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None


def references(body: AnthropicConversation) -> set[str]:
    """The names of the deferred tools that tool results refer to."""
    return {each.tool_name for each in _blocks(body) if isinstance(each, ToolReferenceBlock)}


def unread(body: AnthropicConversation, *, vision: bool) -> set[str]:
    """The kinds of the blocks that the model doesn't get, neither as text nor as pictures."""
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
    """The blocks of all messages. The blocks within a tool result follow the result."""
    for message in body.messages:
        for block in message.blocks:
            yield block
            if isinstance(block, ToolResultBlock):
                yield from block.blocks


def picture_sources(body: AnthropicConversation) -> list[Source]:
    """The addresses of all pictures, in the order in which a worker gets the pictures."""
    return [
        Source(_url(block), name)
        for index, message in enumerate(body.messages)
        for block, name in _pictures(message, f"messages.{index}.content")
    ]


def _pictures(message: AnthropicMessageBody, path: str) -> Iterator[tuple[ImageBlock, str]]:
    """The pictures of a message, each with its path in the body. The pictures of tool results come
    first, as in the messages that a worker renders.
    """
    blocks = [(each, f"{path}.{place}") for place, each in enumerate(message.blocks)]
    for block, name in blocks:
        if isinstance(block, ToolResultBlock):
            for place, each in enumerate(block.blocks):
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
    """The messages as a worker renders them. `pictures` has the bytes of each picture that
    `picture_sources` lists. Without `vision` the text has a note in place of each picture. A
    `deferred` tool is described where a tool result first refers to it.

    Raises:
        Refusal: a block is in a message of the wrong role.
    """
    texts: list[TextBlock] = _as_blocks(body.system)
    system = "\n".join(each.text for each in texts if not _BILLING.fullmatch(each.text))
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


def _assistants(index: int, body: AnthropicMessageBody) -> ChatMessage:
    texts, thoughts, calls = [], [], []
    for place, block in enumerate(body.blocks):
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
                raise _misplaced(index, place, block, "a user's")
    return ChatMessage(
        "assistant", "".join(texts), reasoning="".join(thoughts) or None, tool_calls=tuple(calls)
    )


def _users(
    index: int,
    body: AnthropicMessageBody,
    pictures: Iterator[bytes] | None,
    untold: dict[str, FunctionBody],
) -> Iterator[ChatMessage]:
    """The messages that a worker renders for one message of the user or the system. Tool results
    come before the user's text, as chat templates expect. Templates allow no pictures in results,
    so the user's message gets these pictures. `pictures` None: the model has no vision.
    """
    found = list(_pictures(body, f"messages.{index}.content"))
    shown = None if pictures is None else [(next(pictures), name) for _, name in found]
    if shown and body.role != "user":
        raise _misplaced(index, 0, found[0][0], "a user's")
    said = _UserMessage(shown, untold)
    for block in body.blocks:
        if isinstance(block, ToolResultBlock):
            result = said.result(block)
            yield ChatMessage("tool", result, tool_call_id=block.tool_use_id)
    for place, block in enumerate(body.blocks):
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
                raise _misplaced(index, place, block, "an assistant's")
    if said.texts or said.shown or not body.blocks:
        yield ChatMessage("user", "\n".join(said.texts), pictures=tuple(said.shown))


def _document(block: DocumentBlock) -> str:
    about = filter(None, (block.title, block.context))
    text = block.source.data if isinstance(block.source, TextSource) else _UNREAD
    return "\n".join((*about, text))


class _UserMessage:
    """Gathers the text and the pictures of a user's message."""

    def __init__(
        self, pictures: list[tuple[bytes, str]] | None, untold: dict[str, FunctionBody]
    ) -> None:
        """`pictures` has the bytes and the path of each picture, in the order of the calls of
        `show`; None: the model has no vision. `untold` has the deferred tools that no text has
        described yet, by name.
        """
        self._pictures = pictures
        self.texts: list[str] = []
        self.shown: list[Picture] = []
        self._untold = untold
        self._length = 0

    def add(self, text: str) -> None:
        # A line break comes before each text but the first.
        self._length += len(text) + bool(self.texts)
        self.texts.append(text)

    def show(self) -> bool:
        """Place the next picture behind the text so far. Return False, and place none, if the model
        has no vision.
        """
        if self._pictures is None:
            return False
        data, name = self._pictures[len(self.shown)]
        self.shown.append(Picture(data, self._length, name))
        return True

    def _described(self, names: Sequence[str]) -> str:
        """The text that makes the named tools callable. The text describes only the tools that no
        earlier text has described.
        """
        new = [template_function(self._untold.pop(each)) for each in names if each in self._untold]
        told = f"These functions can be called from now on: {', '.join(names)}"
        return f"{told}\n{msgspec.json.encode(new).decode()}" if new else told

    def result(self, block: ToolResultBlock) -> str:
        """The text of a tool result. The pictures of the result are added to this message."""
        texts = []
        called = []
        for each in block.blocks:
            match each:
                case TextBlock(text):
                    texts.append(text)
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
            texts.append(self._described(called))
        whole = "\n".join(texts)
        return f"Error: {whole}" if block.is_error else whole


def _misplaced(index: int, place: int, block: BodyPart, whose: str) -> Refusal:
    kind = block.__struct_config__.tag
    param = f"messages.{index}.content.{place}"
    return invalid(f"{param}: {kind} belongs to {whose} message.", param)
