"""Readers of blocks of tool calls: they get the text after a block's tag, a character at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, Protocol, TypeAlias

import regex

from worker.calls.assembly import Assembly
from worker.calls.values import Schemas

# All characters that JSON has outside strings, with those of numbers and literals.
_OUTSIDE: Final = frozenset("{}[]:, \t\r\n0123456789+-.eEtrufalsnINiyN")
_CLOSING: Final = {"{": "}", "[": "]"}
Steps = Generator[None, str, None]
# Parses the text of a block: a call, or a list of calls, each with a name and arguments.
Parse: TypeAlias = Callable[[str], Any]
_MOST_HEAD_CHARACTERS: Final = 512
# The longest block for a parser. The time of mlx-lm's parsers can grow with the square of that.
_MOST_WHOLE_CHARACTERS: Final = 1 << 18
# Ends of a block that are tried.
_MOST_TRIES: Final = 8


class BrokenCallError(Exception):
    """The characters since the last `Assembly.commit` are no call."""


class BlockEndedError(Exception):
    """The tag that ends a block came within a call."""


class Reader(Protocol):
    """Reads one block of calls, and gives them to an assembly."""

    @property
    def ended(self) -> bool:
        """Whether the block could end here."""

    def read(self, character: str) -> str | None:
        """Read a character. If the block is over, return the text that follows the block.

        Raises:
            BrokenCallError: the characters since the last `Assembly.commit` are no call.
        """

    def close(self, *, complete: bool) -> str:
        """End the block, since the answer is over, and return the text that follows the block.
        `complete`: the model itself ended the answer. Raises as `read` does.
        """


class HeadedCalls:
    """Reads calls that are a head with the name, and arguments in JSON. The arguments go to the
    assembly as they come. `head` matches a head up to the bracket that opens the arguments. `tail`
    matches from the end of the last arguments to the end of the block, and `closing` what belongs
    to a call behind its arguments. `otherwise` makes a reader for calls without such a head.
    """

    def __init__(
        self,
        assembly: Assembly,
        end: str,
        head: regex.Pattern[str],
        tail: regex.Pattern[str],
        closing: regex.Pattern[str] | None = None,
        otherwise: Callable[[], Reader] | None = None,
    ) -> None:
        self._assembly = assembly
        self._end = end
        self._head = head
        self._tail = tail
        self._closing = closing
        self._otherwise = otherwise
        self._other: Reader | None = None
        self._text = ""
        self._given = False
        self._span: Steps | None = None

    @property
    def ended(self) -> bool:
        return self._given and self._span is None and self._other is None

    def read(self, character: str) -> str | None:
        if self._other is not None:
            return self._other.read(character)
        if self._span is not None:
            return self._read_argument(self._span, character)
        self._text += character
        if character == "{" and (match := self._head.fullmatch(self._text)):
            self._assembly.start_call(match["name"])
            self._assembly.arguments("{")
            self._text = ""
            self._given = True
            self._span = span("{", self._assembly.arguments, self._end)
            next(self._span)
            return None
        if self._given and self._end and self._tail.fullmatch(self._text):
            return ""
        if self._given and self._closing is not None and self._closing.fullmatch(self._text):
            self._assembly.commit()
        if len(self._text) > _MOST_HEAD_CHARACTERS or not self._may_go_on():
            return self._start_other()
        return None

    def close(self, *, complete: bool) -> str:
        if self._other is not None:
            return self._other.close(complete=complete)
        if self._assembly.in_call or (self._given and self._may_end()):
            return ""
        self._start_other()
        return self.close(complete=complete)

    def _read_argument(self, steps: Steps, character: str) -> str | None:
        try:
            steps.send(character)
        except StopIteration:
            self._assembly.end()
            self._span = None
        except BlockEndedError:
            self._assembly.end()
            return ""
        return None

    def _start_other(self) -> str | None:
        """Read the text since the last arguments by another reader."""
        if self._otherwise is None:
            raise BrokenCallError
        self._other = self._otherwise()
        rest = None
        for character in self._text:
            rest = self._other.read(character)
        return rest

    def _may_end(self) -> bool:
        return self._tail.fullmatch(self._text, partial=True) is not None

    def _may_go_on(self) -> bool:
        may_begin = self._head.fullmatch(self._text, partial=True)
        return bool(may_begin) or (self._given and self._may_end())


class EitherCalls:
    """Reads a block by the first of several readers whose pattern matches the block's beginning."""

    def __init__(self, choices: Sequence[tuple[regex.Pattern[str], Reader]]) -> None:
        self._choices = choices
        self._text = ""
        self._reader: Reader | None = None

    @property
    def ended(self) -> bool:
        return self._reader is not None and self._reader.ended

    def read(self, character: str) -> str | None:
        if self._reader is not None:
            return self._reader.read(character)
        self._text += character
        for begins, reader in self._choices:
            match = begins.match(self._text, partial=True)
            if match is None:
                continue
            if match.partial:
                return None
            self._reader = reader
            rests = [reader.read(text) for text in self._text]
            return rests[-1]
        raise BrokenCallError

    def close(self, *, complete: bool) -> str:
        if self._reader is None:
            raise BrokenCallError
        return self._reader.close(complete=complete)


class WholeCalls:
    """Reads calls that are no JSON. A parser gets the whole text of a block, at the block's end.
    The block ends at the first tag before which the text can be parsed: its strings may quote the
    tag.
    """

    def __init__(
        self,
        assembly: Assembly,
        end: str,
        parse: Parse,
        begins: regex.Pattern[str],
        known: Schemas | None = None,
    ) -> None:
        """`begins` matches the beginning of every block. Only calls of tools in `known` are calls,
        and their block has its `end`; None: all are.
        """
        self._known = known
        self._assembly = assembly
        self._end = end
        self._parse = parse
        self._begins = begins
        self._begun = False
        self._text = ""
        self._tries = 0
        self.ended = False

    def read(self, character: str) -> str | None:
        self._text += character
        if self._end and self._text.endswith(self._end):
            self._tries += 1
            try:
                self._give(self._text.removesuffix(self._end))
            except BrokenCallError:
                if self._tries >= _MOST_TRIES:
                    raise
            else:
                return ""
        if not self._begun:
            match = self._begins.match(self._text, partial=True)
            if match is None or len(self._text) > _MOST_HEAD_CHARACTERS:
                raise BrokenCallError
            self._begun = not match.partial
        if len(self._text) > _MOST_WHOLE_CHARACTERS:
            raise BrokenCallError
        return None

    def close(self, *, complete: bool) -> str:
        if not complete or (self._known is not None and self._end):
            raise BrokenCallError
        self._give(self._text)
        return ""

    def _give(self, text: str) -> None:
        try:
            parsed = self._parse(text)
            calls = [_call(item) for item in (parsed if isinstance(parsed, list) else [parsed])]
        except Exception as error:
            # Parsers fail in many ways on what models write. Then the block is text.
            raise BrokenCallError from error
        give_calls(self._assembly, calls, self._known)


def give_calls(
    assembly: Assembly, calls: Sequence[tuple[str, dict[str, Any]]], known: Schemas | None
) -> None:
    """Give whole calls to an assembly.

    Raises:
        BrokenCallError: there is none, an argument is no JSON, or a tool isn't `known`.
    """
    if known is not None and not all(known.has_tool(name) for name, _ in calls):
        raise BrokenCallError
    try:
        texts = [_encoded(entry) for _, entry in calls]
    except (TypeError, ValueError, RecursionError) as error:
        raise BrokenCallError from error
    if not texts:
        raise BrokenCallError
    for (name, _), arguments in zip(calls, texts, strict=True):
        if assembly.has_all_calls:
            return
        assembly.start_call(name)
        assembly.arguments(arguments)
        assembly.end()


def _encoded(arguments: dict[str, Any]) -> str:
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    # Halves of characters are joined, and those without the other half can't be sent.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def span(opening: str, put: Callable[[str], None], end: str | None) -> Generator[None, str, None]:
    """`put` the characters after the `opening` bracket, up to the bracket that closes it.

    If the text turns out to be no JSON, `put` all characters before the tag `end` of the block, and
    raise BlockEndedError at the tag. An empty `end` is no tag, so the text has no end. With `end`
    None, raise BrokenCallError at once.
    """
    open_brackets = [_CLOSING[opening]]
    in_string = escaped = False
    while open_brackets:
        character = yield
        if in_string:
            # Models write line breaks into strings, which JSON forbids.
            put(character if character >= " " else json.dumps(character)[1:-1])
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
            continue
        if character == '"':
            in_string = True
        elif character in _CLOSING:
            open_brackets.append(_CLOSING[character])
        elif character == open_brackets[-1]:
            open_brackets.pop()
        elif character not in _OUTSIDE or character in "}]":
            if end is None:
                raise BrokenCallError
            yield from _until(end, character, put)
        put(character)


def _until(end: str, character: str, put: Callable[[str], None]) -> Generator[None, str, None]:
    held = ""
    while True:
        held += character
        while held and not (end and end.startswith(held)):
            put(held[0])
            held = held[1:]
        if held and held == end:
            raise BlockEndedError
        character = yield


def _call(parsed: Any) -> tuple[str, dict[str, Any]]:
    name, arguments = parsed["name"], parsed["arguments"]
    if not isinstance(name, str) or not name:
        raise ValueError("A call without a name.")
    if not isinstance(arguments, dict):
        raise ValueError("Arguments that are no object.")
    return name, arguments
