"""The types of Anthropic's messages, and how they become a conversation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.http.generation.conversation import UNSEEN, ConversationBuilder, MessageText
from gateway.http.generation.pictures import Source, named
from gateway.http.generation.tools import FunctionBody, template_function
from gateway.http.wire.bodies import AT, BodyPart
from gateway.http.wire.errors import invalid
from gateway.system.refusal import Refusal
from protocol.requests import CalledTool

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
    str(block.__struct_config__.tag) for block in (*get_args(Block), *get_args(ResultBlock))
}


def _as_blocks(content: str | list[Any] | None) -> list[Any]:
    """The decoded blocks of a content. A text is one block."""
    return [TextBlock(content)] if isinstance(content, str) else content or []


class _BlockType(Struct):
    type: str


_BLOCK_TYPE: Final = msgspec.json.Decoder(_BlockType)


def _decoded(blocks: Any, known: msgspec.json.Decoder[Any]) -> list[Any]:
    """Raises: ValueError: a block has no type, or has a known type and is malformed."""
    return [_block(block, known, place) for place, block in enumerate(blocks)]


def _block(block: Raw, known: msgspec.json.Decoder[Any], place: int) -> Any:
    try:
        kind = _BLOCK_TYPE.decode(block).type
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
        for item in value:
            _gather(item, texts)
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


def converse(
    body: AnthropicConversation,
    conversation: ConversationBuilder,
    deferred: Mapping[str, FunctionBody] | None = None,
) -> set[str]:
    """Add the messages to the conversation. A `deferred` tool is described where a tool result
    first refers to it. Returns the names of the deferred tools that results refer to.

    Raises:
        Refusal: a block is in a message of the wrong role.
    """
    blocks: list[TextBlock] = _as_blocks(body.system)
    system = "\n".join(block.text for block in blocks if not _BILLING.fullmatch(block.text))
    if system:
        conversation.add("system", system)
    tools = _DeferredTools(dict(deferred or {}))
    for index, message in enumerate(body.messages):
        path = f"messages.{index}.content"
        if message.role == "assistant":
            _add_assistant(message, path, conversation)
        else:
            _UserMessage(message, path, conversation, tools).add()
    return tools.referred


def _add_assistant(
    message: AnthropicMessageBody, path: str, conversation: ConversationBuilder
) -> None:
    texts, thoughts, calls = [], [], []
    for place, block in enumerate(message.blocks):
        match block:
            case TextBlock(text):
                texts.append(text)
            case ThinkingBlock(thinking):
                thoughts.append(thinking)
            case ToolUseBlock(id_, name, input_):
                calls.append(CalledTool(id_, name, bytes(input_).decode()))
            case ForeignBlock(kind, text):
                if text:
                    texts.append(f"\n({kind}:\n{text})\n")
                else:
                    conversation.left_out.add(named(kind, "block"))
            case _:
                raise _misplaced(block, f"{path}.{place}", "a user's")
    conversation.add(
        "assistant",
        "".join(texts),
        reasoning="".join(thoughts) or None,
        tool_calls=tuple(calls),
    )


class _DeferredTools:
    """The deferred tools of a body: those that no text has described yet, by name, and the names of
    all that results refer to.
    """

    def __init__(self, undescribed: dict[str, FunctionBody]) -> None:
        self._undescribed = undescribed
        self.referred: set[str] = set()

    def describe(self, names: Sequence[str]) -> str:
        """The text that makes the named tools callable. It describes only tools that no earlier
        text has described.
        """
        self.referred.update(names)
        new = [
            template_function(self._undescribed.pop(name))
            for name in names
            if name in self._undescribed
        ]
        text = f"These functions can be called from now on: {', '.join(names)}"
        return f"{text}\n{msgspec.json.encode(new).decode()}" if new else text


class _UserMessage:
    """Adds one message of the user or the system: the tool results come before the user's text, as
    chat templates expect. Templates allow no pictures in results, so the user's message gets these
    pictures.
    """

    def __init__(
        self,
        message: AnthropicMessageBody,
        path: str,
        conversation: ConversationBuilder,
        tools: _DeferredTools,
    ) -> None:
        self._message = message
        self._path = path
        self._conversation = conversation
        self._tools = tools
        self._text = conversation.text(message.role, separator="\n")

    def add(self) -> None:
        blocks = self._message.blocks
        for place, block in enumerate(blocks):
            if isinstance(block, ToolResultBlock):
                self._add_result(block, f"{self._path}.{place}.content")
        for place, block in enumerate(blocks):
            if not isinstance(block, ToolResultBlock):
                self._add_block(block, f"{self._path}.{place}", self._text)
        if self._text.parts or self._text.pictures or not blocks:
            self._conversation.add(self._message.role, self._text)

    def _add_result(self, result: ToolResultBlock, path: str) -> None:
        text = self._conversation.text("tool", separator="\n")
        names = []
        for place, block in enumerate(result.blocks):
            if isinstance(block, ToolReferenceBlock):
                names.append(block.tool_name)
            else:
                self._add_block(block, f"{path}.{place}", text)
        if names:
            text.add(self._tools.describe(names))
        whole = f"Error: {text}" if result.is_error else str(text)
        if self._message.role == "system":
            self._conversation.add("system", whole)
        else:
            self._conversation.add("tool", whole, tool_call_id=result.tool_use_id)

    def _add_block(
        self, block: Block | ResultBlock | ForeignBlock, path: str, text: MessageText
    ) -> None:
        left_out = self._conversation.left_out
        match block:
            case TextBlock(words):
                text.add(words)
            case DocumentBlock():
                words = _UNREAD
                if isinstance(block.source, TextSource):
                    words = block.source.data
                else:
                    left_out.add("document")
                about = filter(None, (block.title, block.context))
                text.add("\n".join((*about, words)))
            case ImageBlock():
                self._show(block, path, text)
            case ForeignBlock(kind, words):
                if not words:
                    left_out.add(named(kind, "block"))
                text.add(words or _UNGIVEN)
            case _:
                raise _misplaced(block, path, "an assistant's")

    def _show(self, block: ImageBlock, path: str, text: MessageText) -> None:
        source = Source(_url(block), path)
        if not self._conversation.vision:
            self._conversation.left_out.add("image")
            text.add(UNSEEN)
        elif self._message.role != "user":
            raise _misplaced(block, path, "a user's")
        else:
            self._text.show(source)


def _url(block: ImageBlock) -> str:
    match block.source:
        case Base64Source(data):
            return f"data:;base64,{data}"
        case UrlSource(url):
            return url


def _misplaced(block: BodyPart, param: str, whose: str) -> Refusal:
    kind = block.__struct_config__.tag
    return invalid(f"{param}: {kind} belongs to {whose} message.", param)
