"""Reads TOML, and goes on behind a line that is none, so that the other mistakes show as well."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

_LARGEST_BYTES: Final = 1 << 20
_MOST_BROKEN_LINES: Final = 20
_LONGEST_STATEMENT: Final = 200
_LONG_QUOTES: Final = ('"""', "'''")
_PLACE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


class Document(Struct, frozen=True):
    """`broken` has what is wrong by line; `text` is blank there, and `left_out` has these lines."""

    text: str
    tables: dict[str, Any]
    broken: dict[int, str]
    left_out: tuple[str, ...] = ()


class UnreadableError(Exception):
    """The file can't be read; the text is a sentence."""


def read_document(path: Path) -> Document:
    """A file's tables, and what is wrong with lines of it.

    Raises:
        FileNotFoundError: there is none.
        UnreadableError: it is no file or no text, or can't be opened.
    """
    try:
        mode = path.stat().st_mode
        # A pipe is waited for as long as nobody writes, and read once: a reload gets nothing.
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or path == Path(os.devnull)):
            raise UnreadableError("it is a pipe or a device: name a file, which can be read again")
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
        if len(content) > _LARGEST_BYTES:
            raise UnreadableError("it is larger than 1 MiB, which no configuration is")
        # Some editors begin with a byte order mark.
        return parse(content.decode("utf-8-sig"))
    except FileNotFoundError:
        raise
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return Document("", {}, {line: "this is not UTF-8"})
    except OSError as error:
        raise UnreadableError(f"it can't be read: {error.strerror}") from error


def parse(text: str) -> Document:
    """Tables of a text. Lines that are wrong in themselves are noted and left out.

    After a mistake that concerns more than its line, such as a list without an end, what follows
    can't be trusted: then there are no tables.
    """
    lines = text.split("\n")
    broken: dict[int, str] = {}
    left_out: list[str] = []
    while len(broken) < _MOST_BROKEN_LINES:
        text = "\n".join(lines)
        try:
            return Document(text, tomllib.loads(text), broken, tuple(left_out))
        except RecursionError:
            line, message = 1, "it is nested too deeply"
        except ValueError as error:
            # An integer of thousands of digits is no TOMLDecodeError, and has no place.
            place = _PLACE.search(str(error))
            line = int(place[1]) if place is not None and place[1] else len(lines)
            message = _PLACE.sub("", str(error))
            if line == len(lines) or message.startswith("Unclosed"):
                line = _begin(lines, line)
        broken[line] = f"this is not TOML: {message}"
        if not _is_apart(lines, line, given_twice=message.startswith("Cannot overwrite")):
            broken[line] += "; what else the file holds was not checked"
            break
        left_out.append(lines[line - 1])
        lines[line - 1] = ""
    return Document(text, {}, broken)


def _begin(lines: list[str], end: int) -> int:
    """Where what goes wrong at a line began: behind the last line up to which all is well."""
    for well in range(end - 1, max(0, end - _LONGEST_STATEMENT), -1):
        if _parses("\n".join(lines[:well])):
            return well + 1
    return max(1, end - _LONGEST_STATEMENT + 1)


def _is_apart(lines: list[str], number: int, *, given_twice: bool) -> bool:
    """Whether what is wrong with a line is so without the others, and none of them belong to it."""
    before, line, after = lines[: number - 1], lines[number - 1], lines[number:]
    if line.lstrip().startswith("[") or any(line.count(quotes) % 2 for quotes in _LONG_QUOTES):
        return False
    if line.count("[") != line.count("]") or line.count("{") != line.count("}"):
        return False
    if _parses(line) and not given_twice:
        return False
    if _parses("\n".join(before)):
        return True
    # In the middle of a statement; quotes may end what began before it.
    without = "\n".join([*before, "", *after])
    return not any(quotes in line for quotes in _LONG_QUOTES) and _parses(without)


def _parses(text: str) -> bool:
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
