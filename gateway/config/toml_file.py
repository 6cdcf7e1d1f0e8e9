"""Reads TOML. The lines after an invalid line are still read."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from gateway.system.state_file import written_by_others

_LARGEST_BYTES: Final = 1 << 20
_MOST_BROKEN_LINES: Final = 20
_LONGEST_STATEMENT: Final = 200
_LONG_QUOTES: Final = ('"""', "'''")
_ERROR_POSITION: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


class TomlDocument(Struct, frozen=True):
    """A TOML text and its tables. `broken` maps the numbers of invalid lines to messages. Invalid
    lines that could be left out are blank in `text`, and stand in `left_out`.
    """

    text: str
    tables: dict[str, Any]
    broken: dict[int, str]
    left_out: tuple[str, ...] = ()


class UnreadableFileError(Exception):
    """The file can't be read. The text says why, in a clause without a full stop."""


def read_document(path: Path) -> TomlDocument:
    """The tables of a file, and the mistakes in its lines.

    Raises:
        FileNotFoundError: there is no file.
        UnreadableFileError: it is no regular file, too large, can't be opened, or others may have
            written it.
    """
    try:
        status = path.stat()
        mode = status.st_mode
        # A pipe is refused. To open a pipe may take for ever, and a reload could not read its text
        # again. A folder is not refused here, as `open` reports folders.
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or path == Path(os.devnull)):
            raise UnreadableFileError(
                "it is a pipe or a device: name a file, which can be read again"
            )
        # The file names programs, which run as this account.
        if stat.S_ISREG(mode) and (reason := written_by_others(path, status)) is not None:
            raise UnreadableFileError(reason)
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
        if len(content) > _LARGEST_BYTES:
            raise UnreadableFileError("it is larger than 1 MiB, which no configuration is")
        # Some editors write a byte order mark.
        return parse(content.decode("utf-8-sig"))
    except FileNotFoundError:
        raise
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return TomlDocument("", {}, {line: "this is not UTF-8"})
    except OSError as error:
        raise UnreadableFileError(f"it can't be read: {error.strerror}") from error


def parse(text: str) -> TomlDocument:
    """The tables of a text. Invalid lines are recorded and left out.

    Some mistakes concern more than their line, as a list without an end. The lines after such a
    mistake can't be trusted, so the result has no tables.
    """
    lines = text.split("\n")
    broken: dict[int, str] = {}
    left_out: list[str] = []
    while len(broken) < _MOST_BROKEN_LINES:
        text = "\n".join(lines)
        try:
            return TomlDocument(text, tomllib.loads(text), broken, tuple(left_out))
        except RecursionError:
            line, message = 1, "it is nested too deeply"
        except ValueError as error:
            # For an integer of thousands of digits, tomllib's error names no line.
            position = _ERROR_POSITION.search(str(error))
            line = int(position[1]) if position is not None and position[1] else len(lines)
            message = _ERROR_POSITION.sub("", str(error))
            if line == len(lines) or message.startswith("Unclosed"):
                line = _first_line(lines, line)
        broken[line] = f"this is not TOML: {message}"
        if not _is_apart(lines, line, given_twice=message.startswith("Cannot overwrite")):
            broken[line] += "; the rest of the file was not checked"
            break
        left_out.append(lines[line - 1])
        lines[line - 1] = ""
    return TomlDocument(text, {}, broken)


def _first_line(lines: list[str], end: int) -> int:
    """The line at which the invalid statement begins, if tomllib reports the mistake at line `end`.
    All text before the returned line is valid.
    """
    for valid in range(end - 1, max(0, end - _LONGEST_STATEMENT), -1):
        if _parses("\n".join(lines[:valid])):
            return valid + 1
    return max(1, end - _LONGEST_STATEMENT + 1)


def _is_apart(lines: list[str], number: int, *, given_twice: bool) -> bool:
    """Whether a line is invalid by itself, and no part of a statement of several lines.
    `given_twice`: the line is invalid because its key was given before.
    """
    before, line, after = lines[: number - 1], lines[number - 1], lines[number:]
    if line.lstrip().startswith("[") or any(line.count(quotes) % 2 for quotes in _LONG_QUOTES):
        return False
    if line.count("[") != line.count("]") or line.count("{") != line.count("}"):
        return False
    if _parses(line) and not given_twice:
        return False
    if _parses("\n".join(before)):
        return True
    # The lines before are an unfinished statement. Long quotes in this line may end the statement.
    without = "\n".join([*before, "", *after])
    return not any(quotes in line for quotes in _LONG_QUOTES) and _parses(without)


def _parses(text: str) -> bool:
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
