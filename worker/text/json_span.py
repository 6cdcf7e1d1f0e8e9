"""Where a JSON object ends, read a character a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from typing import Final

SPACE: Final = frozenset(" \t\r\n")
# All that stands between strings: the last are those of literals, and of numbers beside digits.
_OUTSIDE: Final = frozenset("{}[]:, \t\r\n0123456789+-.eEtrufalsnINiyN")
_CLOSING: Final = {"{": "}", "[": "]"}


class BrokenCallError(Exception):
    """What was read since the last commitment is no call."""


class BlockEndedError(Exception):
    """The end of the block was found where nobody looked for it."""


def span(opening: str, put: Callable[[str], None], end: str | None) -> Generator[None, str, None]:
    """Gets what follows the `opening` bracket, up to the one that closes it, and puts it.

    What is no JSON goes on up to the `end` tag of its block, "" if there is none: it raises
    BlockEndedError there. With None, BrokenCallError at once.
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
