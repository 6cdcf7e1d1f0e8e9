"""Finds the usage in answers that pass, whose servers are others."""

from __future__ import annotations

import re
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from protocol.answers import Usage

# The name of the field, as it is written.
USAGE: Final = b'"usage"'
_LONGEST_USAGE: Final = 4096
# An object whose objects have no further objects in them.
_OBJECT: Final = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')
# More than any answer has. A larger number is no count, and couldn't be written.
_MOST_TOKENS: Final = 1 << 32
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=_MOST_TOKENS)]


class _Told(Struct):
    """The usage in an answer, with the names of OpenAI's and of Anthropic's APIs."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None


# The names in the last object of an answer in Ollama's API.
_COUNT: Final = re.compile(rb'"(prompt_)?eval_count"\s*:\s*([0-9]{1,9})[,}\s]')
_LONGEST_COUNT: Final = 64


# About the bytes of a token.
_TOKEN_BYTES: Final = 4
# A piece of text in an event of a stream, by the names of all APIs.
_DELTA: Final = re.compile(
    rb'"(?:content|text|delta|reasoning|reasoning_content|thinking|arguments|partial_json|response)"'
    rb'\s*:\s*"(?!")'
)


class UsageReader:
    """Finds the usage in an answer as it passes. The word in quotes is a field's name: within a
    text the quotes would be escaped. A stream that ends before it tells its usage has a token for
    each event.
    """

    def __init__(self, prompt_bytes: int = 0) -> None:
        self.told: Usage | None = None
        self._prompt_tokens = prompt_bytes // _TOKEN_BYTES
        self._deltas = 0
        self._tail = b""
        self._open = False

    @property
    def usage(self) -> Usage | None:
        """The tokens of the answer so far; None: nothing tells of any."""
        if not self._deltas:
            return self.told
        told = self.told or Usage(self._prompt_tokens, 0)
        return Usage(told.prompt_tokens, max(told.completion_tokens, self._deltas))

    def count_deltas(self, events: bytes) -> None:
        self._deltas += len(_DELTA.findall(events))

    def read(self, piece: bytes) -> None:
        text = self._tail + piece
        if not self._open and USAGE not in text:
            self._tail = text[1 - len(USAGE) :]
            return
        # The object may go on in the next piece.
        begin = text.rindex(USAGE) if USAGE in text else 0
        self._open = True
        self._tail = text[begin : begin + _LONGEST_USAGE]
        for found in _OBJECT.finditer(text):
            self._note(found[1])
            if found.start() >= begin:
                self._open, self._tail = False, b""

    def _note(self, text: bytes) -> None:
        try:
            told = msgspec.json.decode(text, type=_Told)
        except msgspec.DecodeError:
            return
        before = self.told or Usage(0, 0)
        # Anthropic's streams tell the prompt first, and the answer last.
        self.told = Usage(
            max(before.prompt_tokens, told.prompt_tokens or told.input_tokens or 0),
            max(before.completion_tokens, told.completion_tokens or told.output_tokens or 0),
        )


class OllamaUsageReader(UsageReader):
    """Finds the usage in an answer in Ollama's API."""

    def read(self, piece: bytes) -> None:
        text = self._tail + piece
        self._tail = text[-_LONGEST_COUNT:]
        for found in _COUNT.finditer(text):
            before = self.told or Usage(0, 0)
            count = int(found[2])
            self.told = (
                Usage(count, before.completion_tokens)
                if found[1]
                else Usage(before.prompt_tokens, count)
            )
