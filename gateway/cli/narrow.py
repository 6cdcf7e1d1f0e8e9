"""Tables on terminals that have no room for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

# What a name that goes on in the next line has at least in each.
_NAME: Final = 10
_INDENT: Final = 2
_GAP: Final = "  "


def print_table(console: Console, table: Table) -> None:
    """Print it; where it would be cut, each row as a paragraph: its first cell, and below it the
    others behind their headings.
    """
    if _least_width(table) <= console.width:
        console.print(table)
        return
    for name, *cells in zip(*(each.cells for each in table.columns), strict=True):
        console.print(name, style="bold", overflow="fold")
        headings = (str(each.header) for each in table.columns[1:])
        told = (f"{heading} {cell}" for heading, cell in zip(headings, cells, strict=True) if cell)
        for line in _lines(told, console.width - _INDENT):
            console.print(Padding.indent(Text(line, overflow="fold"), _INDENT))


def _least_width(table: Table) -> int:
    """Of a table whose first column has the names. Gaps are those that its columns have."""
    gaps = (len(table.columns) - 1) * (table.padding[1] + table.padding[3])
    return gaps + sum(map(_least_width_of, table.columns))


def _least_width_of(column: Column) -> int:
    width = max(cell_len(str(each)) for each in (column.header, *column.cells))
    return width if column.no_wrap else min(width, _NAME)


def _lines(told: Iterator[str], width: int) -> Iterator[str]:
    """As many in each as there is room for."""
    line = ""
    for each in told:
        longer = f"{line}{_GAP}{each}" if line else each
        if line and cell_len(longer) > width:
            yield line
            line = each
        else:
            line = longer
    if line:
        yield line
