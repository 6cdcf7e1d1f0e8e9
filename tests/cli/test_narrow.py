"""Tables that have no room: nothing is lost, whatever is in them."""

from __future__ import annotations

import io
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from gateway.cli.output import print_table

_words = st.text("abc 123", min_size=1, max_size=30).map(str.strip).filter(bool)


def _printed(rows: list[tuple[str, str, str]], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("name", overflow="fold")
    table.add_column("size", no_wrap=True)
    table.add_column("note", overflow="fold")
    for row in rows:
        table.add_row(*row)
    print_table(console, table)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@given(st.lists(st.tuples(_words, _words, _words), min_size=1, max_size=4), st.integers(20, 45))
def test_every_cell_is_there_whole(rows: list[tuple[str, str, str]], width: int) -> None:
    printed = _printed(rows, width)
    assert all(len(line) <= width for line in printed)
    if printed[0].split()[:2] == ["name", "size"]:
        # There was room: what could be folded was, and the rest stands in one line.
        assert all(any(size in line for line in printed) for _, size, _ in rows)
        return
    text = re.sub(r"\s", "", "".join(printed))
    expected = "".join(f"{name}size{size}note{note}" for name, size, note in rows)
    assert text == expected.replace(" ", "")


def test_name_stands_above_its_cells_on_a_narrow_screen() -> None:
    assert _printed([("llama-3.2-3b", "1.8 GB", "quantized by somebody"), ("b", "", "-")], 24) == [
        "llama-3.2-3b",
        "  size 1.8 GB",
        "  note quantized by",
        "  somebody",
        "b",
        "  note -",
    ]
