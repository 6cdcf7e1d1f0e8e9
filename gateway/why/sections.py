"""The sections of a prompt, as they are remembered: hashes, and bounded excerpts of the texts."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct

from protocol.requests import ChatMessage, ChatPrompt, Generate, TextPrompt

PromptSectionKind: TypeAlias = Literal["tool", "message", "text"]

# A section of so many characters is remembered whole, and of a longer one both ends.
WHOLE: Final = 16_000
ENDS: Final = 1_000
# A request adds at most so many bytes of texts to what is remembered.
MOST_TEXT_BYTES: Final = 64 << 10
# A longer section has a hash for each piece of so many characters, and so many hashes at most.
PIECE: Final = 64
_MOST_PIECES: Final = 4096
# About what a section takes beside its texts and hashes, in bytes.
_BESIDE_BYTES: Final = 300
_SYSTEM: Final = ("system", "developer")


class PromptSection(Struct, frozen=True, kw_only=True, eq=False):
    """A part of a prompt. `name` is the name of a tool, or the role of a message. Two sections with
    the same `digest` are the same. `content` is the hash of the text alone, `reasoning` and
    `pictures` those of the other parts of a message; 0: it has none.

    `begin` are the first characters of the text, and `end` the last ones, unless `begin` is whole.
    `pieces` has the hashes of the text's pieces, unless `begin` is whole.
    """

    kind: PromptSectionKind
    name: str
    digest: int
    content: int
    length: int
    begin: str
    end: str = ""
    pieces: array[int] = array("q")
    reasoning: int = 0
    pictures: int = 0

    @property
    def whole(self) -> bool:
        return len(self.begin) == self.length

    @property
    def system(self) -> bool:
        return self.kind == "message" and self.name in _SYSTEM

    @property
    def text_bytes(self) -> int:
        return self.begin.__sizeof__() + self.end.__sizeof__()

    @property
    def bytes_(self) -> int:
        return _BESIDE_BYTES + self.text_bytes + self.pieces.itemsize * len(self.pieces)


class Sketch(Struct, frozen=True):
    """A prompt as it is remembered. `arguments` are those of the chat template, as JSON text. With
    `scored` the log probabilities of the prompt were asked for.
    """

    sections: tuple[PromptSection, ...]
    arguments: str = ""
    scored: bool = False

    @property
    def tools(self) -> tuple[PromptSection, ...]:
        return tuple(section for section in self.sections if section.kind == "tool")

    @property
    def others(self) -> tuple[PromptSection, ...]:
        """All sections but the tools."""
        return self.sections[len(self.tools) :]


Known: TypeAlias = Mapping[int, PromptSection]


def sketch(task: Generate, known: Known) -> Sketch:
    """The sketch of a request's prompt. Sections that are `known`, by their digests, are used
    again, so that only new texts are read. Slow for a long prompt.
    """
    sketcher = _Sketcher(known)
    scored = task.prompt_logprobs is not None
    match task.prompt:
        case ChatPrompt() as prompt:
            tools = "" if task.tools is None else task.tools.definitions
            sections = [*sketcher.tools(tools), *map(sketcher.message, prompt.messages)]
            return Sketch(tuple(sections), prompt.template_arguments, scored)
        case TextPrompt() as prompt:
            section = sketcher.section("text", "", prompt.text + (prompt.suffix or ""))
            return Sketch((section,), "", scored)
        case _:
            return Sketch((), "", scored)


class _Function(Struct, frozen=True):
    name: str = ""


class _Tool(Struct, frozen=True):
    function: _Function = _Function()


_tools = msgspec.json.Decoder(list[Raw])
_tool = msgspec.json.Decoder(_Tool)


class _Sketcher:
    def __init__(self, known: Known) -> None:
        self._known = known
        self._left_bytes = MOST_TEXT_BYTES

    def tools(self, definitions: str) -> list[PromptSection]:
        if not definitions:
            return []
        return [
            self.section("tool", _tool.decode(raw).function.name, bytes(raw).decode())
            for raw in _tools.decode(definitions)
        ]

    def message(self, message: ChatMessage) -> PromptSection:
        digest = hash(message)
        if (section := self._known.get(digest)) is not None:
            return section
        calls = "".join(f"\n{call.name} {call.arguments}" for call in message.tool_calls)
        return self._new(
            "message",
            message.role,
            message.content + calls,
            digest,
            reasoning=hash(message.reasoning) if message.reasoning else 0,
            pictures=hash(message.pictures) if message.pictures else 0,
        )

    def section(self, kind: PromptSectionKind, name: str, text: str) -> PromptSection:
        digest = hash((kind, name, text))
        return self._known.get(digest) or self._new(kind, name, text, digest)

    def _new(
        self,
        kind: PromptSectionKind,
        name: str,
        text: str,
        digest: int,
        *,
        reasoning: int = 0,
        pictures: int = 0,
    ) -> PromptSection:
        begin, end, pieces = text, "", array("q")
        if len(text) > WHOLE or text.__sizeof__() > self._left_bytes:
            room = max(0, min(ENDS, len(text) // 2, self._left_bytes // 8))
            begin, end = text[:room], text[len(text) - room :]
            pieces = hashes(text)
        self._left_bytes -= begin.__sizeof__() + end.__sizeof__()
        return PromptSection(
            kind=kind,
            name=name,
            digest=digest,
            content=hash(text),
            length=len(text),
            begin=begin,
            end=end,
            pieces=pieces,
            reasoning=reasoning,
            pictures=pictures,
        )


def hashes(text: str) -> array[int]:
    """The hashes of the pieces of a text. Its last piece may be shorter."""
    most = min(len(text), _MOST_PIECES * PIECE)
    return array("q", [hash(text[begin : begin + PIECE]) for begin in range(0, most, PIECE)])
