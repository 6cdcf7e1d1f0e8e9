"""Reads TOML, and goes on behind a line that is none, so that the other mistakes show as well."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

_LARGEST_BYTES: Final = 1 << 20
_MOST_BROKEN_LINES: Final = 20
_PLACE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


class Document(Struct, frozen=True):
    """`text` is what was parsed in the end: the lines in `broken`, by number, are blank there."""

    text: str
    tables: dict[str, Any]
    broken: dict[int, str]


class UnreadableError(Exception):
    """The file can't be read; the text is a sentence."""


def read_document(path: Path) -> Document:
    """A file's tables, and what is wrong with lines of it.

    Raises:
        FileNotFoundError: there is none.
        UnreadableError: it is no text, or can't be opened.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
        if len(content) > _LARGEST_BYTES:
            raise UnreadableError("it is larger than 1 MiB, which no configuration is")
        return parse(content.decode("utf-8"))
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
    while len(broken) < _MOST_BROKEN_LINES:
        text = "\n".join(lines)
        try:
            return Document(text, tomllib.loads(text), broken)
        except RecursionError:
            return Document(text, {}, {**broken, 1: "it is nested too deeply"})
        except ValueError as error:
            # An integer of thousands of digits is no TOMLDecodeError, and has no place.
            place = _PLACE.search(str(error))
            line = int(place[1]) if place is not None and place[1] else _last_line(lines)
            broken[line] = f"this is not TOML: {_PLACE.sub('', str(error))}"
        if not _stands_alone(lines[line - 1]):
            break
        lines[line - 1] = ""
    return Document(text, {}, broken)


def _last_line(lines: list[str]) -> int:
    return max((number for number, line in enumerate(lines, 1) if line.strip()), default=1)


def _stands_alone(line: str) -> bool:
    """Whether a broken line is broken without the others, and none belong to it."""
    if line.lstrip().startswith("["):
        return False
    try:
        tomllib.loads(line)
    except ValueError:
        return True
    return False
