"""Output of the commands: foreign text, tables, times and sizes."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, Final, Generic, Literal, TypeVar

import click
import msgspec
import rich.table
from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gateway.system.log_lines import escaped
from gateway.system.notation import format_size

Row = TypeVar("Row")

UNKNOWN: Final = "-"
# Control characters steer a terminal; lone surrogates can't be encoded.
_LEFT_OUT: Final = ("Cc", "Cs")


def printable(text: str) -> str:
    """The text without control characters and surrogates; line breaks and tabs stay."""
    return "".join(
        name for name in text if name in "\n\t" or unicodedata.category(name) not in _LEFT_OUT
    )


def print_json(content: object) -> None:
    """Print structs, lists and dicts as JSON, with every control character escaped. JSON itself
    demands that only of some.
    """
    text = json.dumps(msgspec.to_builtins(content), indent=2, ensure_ascii=False)
    escaped = (
        f"\\u{ord(character):04x}"
        if character != "\n" and unicodedata.category(character) in _LEFT_OUT
        else character
        for character in text
    )
    click.echo("".join(escaped))


# Wider than any row: in a pipe each row is one line.
_UNBROKEN: Final = 100_000


def stdout_console() -> Console:
    """A console that prints text literally; it colours and breaks lines only on a terminal."""
    return _console(sys.stdout)


def stderr_console() -> Console:
    return _console(sys.stderr)


def _console(stream: IO[Any]) -> Console:
    terminal = stream.isatty()
    return Console(
        stderr=stream is sys.stderr,
        width=None if terminal else _UNBROKEN,
        force_terminal=terminal,
        markup=False,
        emoji=False,
        highlight=False,
    )


# The least width, in cells, of a column whose text may be broken into lines.
_NAME: Final = 10
_INDENT: Final = 2
_GAP: Final = "  "


def new_table(gap: int) -> Table:
    """A table without ruled lines, with `gap` empty cells between its columns."""
    return Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")


class Column(Struct, Generic[Row], frozen=True):
    """A column of a table: its heading, and the text of a row's cell. Numbers stand at the right,
    names may be broken into lines.
    """

    heading: str
    value: Callable[[Row], str]
    kind: Literal["number", "word", "name"] = "number"


def table_of(rows: Iterable[Row], columns: Iterable[Column[Row]], gap: int = 2) -> Table:
    """A table of these rows, with `gap` empty cells between its columns."""
    columns = tuple(columns)
    table = new_table(gap)
    for column in columns:
        table.add_column(
            column.heading,
            justify="right" if column.kind == "number" else "left",
            overflow="fold",
            no_wrap=column.kind != "name",
        )
    for row in rows:
        table.add_row(*(column.value(row) for column in columns))
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table. On a screen that is too narrow each row becomes a paragraph: its first cell,
    and below that the other cells, each behind its heading.
    """
    if _least_width(table) <= console.width:
        console.print(table)
        return
    for name, *cells in zip(*(column.cells for column in table.columns), strict=True):
        console.print(name, style="bold", overflow="fold")
        headings = (str(column.header) for column in table.columns[1:])
        entries = (
            f"{heading} {cell}" for heading, cell in zip(headings, cells, strict=True) if cell
        )
        for line in _lines(entries, console.width - _INDENT):
            console.print(Padding.indent(Text(line, overflow="fold"), _INDENT))


def _least_width(table: Table) -> int:
    """The least width of the table, in cells."""
    gaps = (len(table.columns) - 1) * (table.padding[1] + table.padding[3])
    return gaps + sum(map(_least_width_of, table.columns))


def _least_width_of(column: rich.table.Column) -> int:
    width = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
    return width if column.no_wrap else min(width, _NAME)


def _lines(entries: Iterator[str], width: int) -> Iterator[str]:
    """Join the entries to lines, each with as many entries as fit into `width` cells."""
    line = ""
    for entry in entries:
        longer = f"{line}{_GAP}{entry}" if line else entry
        if line and cell_len(longer) > width:
            yield line
            line = entry
        else:
            line = longer
    if line:
        yield line


_UNITS: Final = ((2 * 86400.0, 86400.0, "d"), (2 * 3600.0, 3600.0, "h"), (120.0, 60.0, "min"))


def duration(seconds: float) -> str:
    """The duration as text: `0.3 s`, `12 s`, `2 min`, `26 h`, `3 d`."""
    for least_s, unit_s, unit in _UNITS:
        if seconds >= least_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def age(seconds: float | None) -> str:
    """The age as text of four cells at most: `0s` to `119s`, `2m`, `2h`, `2d` to `999d`."""
    if seconds is None:
        return UNKNOWN
    for least_s, unit_s, unit in _UNITS:
        if seconds >= least_s:
            return f"{seconds / unit_s:.0f}{unit[0]}"
    return f"{seconds:.0f}s"


def ago(at: float | None, now: float) -> str:
    """The age of a Unix time as text: `now` below a second, also for a time of another machine
    whose clock is ahead; `never` for None.
    """
    if at is None:
        return "never"
    return f"{duration(now - at)} ago" if now - at >= 1 else "now"


def share(rate: float | None) -> str:
    return UNKNOWN if rate is None else f"{rate:.0%}"


def size(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else format_size(size_bytes)


def count(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


# The width of the column of marks.
_MARK_WIDTH: Final = 8


def print_marked(console: Console, mark: Text, text: str) -> None:
    """Print a text behind its mark. A terminal breaks it between words, beside the mark."""
    body = Text(printable(text).replace("\n", " "))
    if not console.is_terminal:
        console.print(f"{mark.plain:<{_MARK_WIDTH}}{body.plain}", soft_wrap=True)
        return
    row = Table.grid(padding=0)
    row.add_column(width=_MARK_WIDTH, no_wrap=True)
    row.add_column(overflow="fold")
    row.add_row(mark, body)
    console.print(row)


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


# `wrapped` needs a console to break lines. Nothing is printed on this one.
_QUIET: Final = Console(quiet=True)


def one_line(text: str) -> str:
    """Foreign text without line breaks, its control characters escaped."""
    return escaped(" ".join(text.split()))


def tail_of(text: str, width: int) -> str:
    """The text, or if it is too wide, an ellipsis and its end: ids of models differ at the end."""
    if cell_len(text) <= width:
        return text
    start = 1
    while start < len(text) and cell_len(text[start:]) > width - 1:
        start += 1
    return f"…{text[start:]}"


def wrapped(text: str, width: int, most: int, style: str = "") -> list[Text]:
    """The text broken between words, at most `most` lines; an ellipsis stands for the rest."""
    lines = list(Text(text, style).wrap(_QUIET, max(1, width)))
    for line in lines:
        line.rstrip()
    if len(lines) > most:
        lines = lines[:most]
        lines[-1].append("…")
        lines[-1].truncate(max(1, width), overflow="ellipsis")
    return lines
