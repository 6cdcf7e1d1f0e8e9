"""Readers of blocks of tool calls: they get the text after a block's tag, a character at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from typing import Any, Final, Protocol

import regex

from worker.mlx_lm.text import Parse
from worker.text.assembly import Assembly

SPACE: Final = frozenset(" \t\r\n")
# All characters that JSON has outside strings, with those of numbers and literals.
_OUTSIDE: Final = frozenset("{}[]:, \t\r\n0123456789+-.eEtrufalsnINiyN")
_CLOSING: Final = {"{": "}", "[": "]"}
Steps = Generator[None, str, None]
_NAMES: Final = frozenset({"name", "tool_name", "function"})
_ARGUMENTS: Final = frozenset({"arguments", "parameters", "args"})
_STRICT_KEYS: Final = _NAMES | _ARGUMENTS | {"type", "id"}
_LITERAL: Final = frozenset("truefalsn0123456789+-.eE")
_MOST_HEAD_CHARACTERS: Final = 512
# The longest block for a parser. The time of mlx-lm's parsers can grow with the square of that.
_MOST_WHOLE_CHARACTERS: Final = 1 << 18


class BrokenCallError(Exception):
    """The characters since the last `Assembly.commit` are no call."""


class BlockEndedError(Exception):
    """The tag that ends a block came within a call."""


class Reader(Protocol):
    """Reads one block of calls, and gives them to an assembly."""

    def take(self, character: str) -> bool:
        """Read a character. Return True if the block ends with it.

        Raises:
            BrokenCallError: the characters since the last `Assembly.commit` are no call.
        """

    def close(self, *, complete: bool) -> None:
        """End the block, since the answer is over. `complete`: the model itself ended the answer.
        Raises as `take` does.
        """


class ObjectCalls:
    """Reads calls that are JSON objects with a name and arguments, one after another or in a list.
    Arguments after the name go to the assembly as they come.
    """

    def __init__(self, assembly: Assembly, end: str = "", *, strict: bool = False) -> None:
        """`strict`: accept only the keys of a call, since the text may be JSON of another kind."""
        self._assembly = assembly
        self._end = end
        self._strict = strict
        self._settled = False
        self._steps = self._block()
        next(self._steps)

    def take(self, character: str) -> bool:
        try:
            self._steps.send(character)
        except StopIteration:
            return True
        except BlockEndedError:
            self._assembly.end()
            return True
        return False

    def close(self, *, complete: bool) -> None:
        if not self._settled and not self._assembly.in_call:
            raise BrokenCallError

    def _block(self) -> Steps:
        while True:
            character = yield
            if character == "{":
                self._settled = False
                yield from self._object()
            elif self._end and character == self._end[0]:
                yield from self._tag()
                return
            elif character not in SPACE and character not in "[],;}":
                raise BrokenCallError
            elif self._settled:
                self._assembly.commit()

    def _tag(self) -> Steps:
        for expected in self._end[1:]:
            if (yield) != expected:
                raise BrokenCallError
        if not self._settled:
            raise BrokenCallError

    def _object(self) -> Steps:
        name: str | None = None
        arguments: str | None = None
        given = False
        character = yield from _solid()
        while character != "}":
            if character == ",":
                character = yield from _solid()
                continue
            if character != '"':
                raise BrokenCallError
            key = yield from _string()
            if self._strict and key not in _STRICT_KEYS:
                raise BrokenCallError
            if (yield from _solid()) != ":":
                raise BrokenCallError
            character = yield from _solid()
            if key in _NAMES and character == '"':
                name = yield from _string()
            elif key == "function" and character == "{":
                yield from self._object()
                given = True
            elif key in _ARGUMENTS and character == '"':
                arguments = yield from _string()
            elif key in _ARGUMENTS and character == "{":
                if given or arguments is not None:
                    raise BrokenCallError
                if name:
                    given = True
                    yield from self._streamed(name)
                else:
                    pieces = ["{"]
                    yield from span("{", pieces.append, None)
                    arguments = "".join(pieces)
            else:
                if key in _ARGUMENTS and character != "n":
                    raise BrokenCallError
                character = yield from _other(character)
                continue
            character = yield from _solid()
        if not given:
            self._give(name, arguments)
        self._assembly.commit()
        self._settled = True

    def _streamed(self, name: str) -> Steps:
        self._assembly.begin(name)
        self._assembly.arguments("{")
        yield from span("{", self._assembly.arguments, self._end)
        self._assembly.end()
        self._settled = True

    def _give(self, name: str | None, arguments: str | None) -> None:
        if not name or (arguments is None and self._strict):
            raise BrokenCallError
        if arguments is not None and not _is_object(arguments):
            raise BrokenCallError
        self._assembly.begin(name)
        self._assembly.arguments("{}" if arguments is None else arguments)
        self._assembly.end()


class HeadedCalls:
    """Reads calls that are a head with the name, and arguments in JSON. The arguments go to the
    assembly as they come. `head` matches a head up to the bracket that opens the arguments. `tail`
    matches from the end of the last arguments to the end of the block.
    """

    def __init__(
        self, assembly: Assembly, end: str, head: regex.Pattern[str], tail: regex.Pattern[str]
    ) -> None:
        self._assembly = assembly
        self._end = end
        self._head = head
        self._tail = tail
        self._text = ""
        self._given = False
        self._span: Steps | None = None

    def take(self, character: str) -> bool:
        if self._span is not None:
            return self._take_argument(self._span, character)
        self._text += character
        if character == "{" and (match := self._head.fullmatch(self._text)):
            self._assembly.begin(match["name"])
            self._assembly.arguments("{")
            self._text = ""
            self._given = True
            self._span = span("{", self._assembly.arguments, self._end)
            next(self._span)
            return False
        if self._end and self._given and self._tail.fullmatch(self._text):
            return True
        if len(self._text) > _MOST_HEAD_CHARACTERS or not self._may_go_on():
            raise BrokenCallError
        return False

    def close(self, *, complete: bool) -> None:
        if self._assembly.in_call:
            return
        if not self._given or not self._tail.fullmatch(self._text, partial=True):
            raise BrokenCallError

    def _take_argument(self, steps: Steps, character: str) -> bool:
        try:
            steps.send(character)
        except StopIteration:
            self._assembly.end()
            self._span = None
        except BlockEndedError:
            self._assembly.end()
            return True
        return False

    def _may_go_on(self) -> bool:
        may_begin = self._head.fullmatch(self._text, partial=True)
        may_end = self._given and self._tail.fullmatch(self._text, partial=True)
        return bool(may_begin or may_end)


class EitherCalls:
    """Reads calls that are objects, or calls with heads: the first character tells which."""

    def __init__(
        self, assembly: Assembly, end: str, head: regex.Pattern[str], tail: regex.Pattern[str]
    ) -> None:
        self._objects = ObjectCalls(assembly, end)
        self._headed = HeadedCalls(assembly, end, head, tail)
        self._reader: Reader | None = None

    def take(self, character: str) -> bool:
        if self._reader is None:
            if character in SPACE:
                return False
            self._reader = self._objects if character in "[{" else self._headed
        return self._reader.take(character)

    def close(self, *, complete: bool) -> None:
        if self._reader is None:
            raise BrokenCallError
        self._reader.close(complete=complete)


class WholeCalls:
    """Reads calls that are no JSON. A parser gets the whole text of a block, at the block's end."""

    def __init__(
        self,
        assembly: Assembly,
        end: str,
        parse: Parse,
        definitions: Any,
        begins: regex.Pattern[str],
    ) -> None:
        """`begins` matches the beginning of every block."""
        self._assembly = assembly
        self._end = end
        self._parse = parse
        self._definitions = definitions
        self._begins = begins
        self._begun = False
        self._pieces: list[str] = []
        self._tail = ""

    def take(self, character: str) -> bool:
        self._pieces.append(character)
        if self._end:
            self._tail = (self._tail + character)[-len(self._end) :]
        if self._end and self._tail == self._end:
            self._give("".join(self._pieces)[: -len(self._end)])
            return True
        if not self._begun:
            match = self._begins.match("".join(self._pieces), partial=True)
            if match is None or len(self._pieces) > _MOST_HEAD_CHARACTERS:
                raise BrokenCallError
            self._begun = not match.partial
        if len(self._pieces) > _MOST_WHOLE_CHARACTERS:
            raise BrokenCallError
        return False

    def close(self, *, complete: bool) -> None:
        if not complete:
            raise BrokenCallError
        self._give("".join(self._pieces))

    def _give(self, text: str) -> None:
        try:
            parsed = self._parse(text, self._definitions)
            calls = [_call(each) for each in (parsed if isinstance(parsed, list) else [parsed])]
        except Exception as error:
            # Parsers fail in many ways on what models write. Then the block is text.
            raise BrokenCallError from error
        if not calls:
            raise BrokenCallError
        for name, arguments in calls:
            if self._assembly.has_all_calls:
                return
            self._assembly.begin(name)
            self._assembly.arguments(arguments)
            self._assembly.end()


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


def _call(parsed: Any) -> tuple[str, str]:
    name, arguments = parsed["name"], parsed["arguments"]
    if not isinstance(name, str) or not name:
        raise ValueError("A call without a name.")
    if not isinstance(arguments, dict):
        raise ValueError("Arguments that are no object.")
    return name, json.dumps(arguments, ensure_ascii=False, allow_nan=False)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _solid() -> Generator[None, str, str]:
    while True:
        character = yield
        if character not in SPACE:
            return character


def _string() -> Generator[None, str, str]:
    """Read a string whose opening quotation mark was read before."""
    pieces = ['"']
    escaped = False
    while True:
        character = yield
        pieces.append(character)
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == '"':
            break
    try:
        return str(json.loads("".join(pieces), strict=False))
    except ValueError as error:
        raise BrokenCallError from error


def _other(character: str) -> Generator[None, str, str]:
    """Skip a value that begins with `character`. Return the first solid character after it."""
    if character == '"':
        yield from _string()
    elif character in "{[":
        yield from span(character, lambda _: None, None)
    elif character in _LITERAL:
        while character in _LITERAL:
            character = yield
        return character if character not in SPACE else (yield from _solid())
    else:
        raise BrokenCallError
    return (yield from _solid())
