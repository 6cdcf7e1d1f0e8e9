"""Text made to fit into cells of a terminal."""

from __future__ import annotations

from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gateway.system.log_lines import escaped

# Wrapping asks it for defaults alone; nothing is printed on it.
_CONSOLE: Final = Console(quiet=True)
_UNITS: Final = ((2 * 86400.0, 86400.0, "d"), (2 * 3600.0, 3600.0, "h"), (120.0, 60.0, "m"))


def one_line(text: str) -> str:
    """Text of others, without line breaks and with what steers a terminal written out."""
    return escaped(" ".join(text.split()))


def tail_of(text: str, width: int) -> str:
    """The text, or its end behind an ellipsis: ids of models differ there."""
    if cell_len(text) <= width:
        return text
    start = 1
    while start < len(text) and cell_len(text[start:]) > width - 1:
        start += 1
    return f"…{text[start:]}"


def wrapped(text: str, width: int, most: int, style: str = "") -> list[Text]:
    """At most so many lines of a text that is broken between words; an ellipsis for the rest."""
    lines = list(Text(text, style).wrap(_CONSOLE, max(1, width)))
    for line in lines:
        line.rstrip()
    if len(lines) > most:
        lines = lines[:most]
        lines[-1].append("…")
        lines[-1].truncate(max(1, width), overflow="ellipsis")
    return lines


def age(seconds: float | None) -> str:
    """`0s` to `119s`, then `2m`, `2h`, `2d`: four cells, up to a hundred days."""
    if seconds is None:
        return "-"
    for least_s, unit_s, unit in _UNITS:
        if seconds >= least_s:
            return f"{seconds / unit_s:.0f}{unit}"
    return f"{seconds:.0f}s"
