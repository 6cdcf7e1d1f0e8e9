"""The machine's memory by who holds it, as bars: no I/O."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from rich.text import Text

from gateway.cli.bodies import MemoryReading
from gateway.cli.memory_table import size

_LEAST_BAR: Final = 8
_GAP: Final = "  "


class Part(Struct, frozen=True):
    """A part of a bar; each has a glyph of its own, for terminals without colours."""

    glyph: str
    style: str
    name: str
    size_bytes: int | None


def memory_lines(memory: MemoryReading, width: int) -> list[Text]:
    """The budget, the machine, and who is who in its bar."""
    holders = _holders(memory)
    pressure = "" if memory.pressure is None else f" pressure {memory.pressure}"
    grants = f" held {size(memory.footprint_bytes)}, granted {size(memory.granted_bytes)}"
    return [
        _bar_line("Budget", memory.budget_bytes, _grants(memory), grants, width),
        _bar_line("Machine", memory.total_bytes, holders, pressure, width),
        *_legend(holders, width),
    ]


def bar(parts: tuple[Part, ...], width: int) -> Text:
    """Cells in proportion to the parts; always exactly so many, and none for what isn't known."""
    sizes = [each.size_bytes or 0 for each in parts]
    total = sum(sizes)
    if total == 0:
        return Text(" " * width)
    text, begun, end_bytes = Text(), 0, 0
    for part, size_bytes in zip(parts, sizes, strict=True):
        end_bytes += size_bytes
        end = end_bytes * width // total
        text.append(part.glyph * (end - begun), part.style)
        begun = end
    return text


def _holders(memory: MemoryReading) -> tuple[Part, ...]:
    """In the order of the table that `bulkhead status` prints. Spares are workers, too."""
    held, spare = memory.footprint_bytes, memory.spare_bytes
    models = None if held is None or spare is None else max(0, held - spare)
    return (
        Part("█", "green", "models", models),
        Part("▓", "cyan", "spare workers", memory.spare_bytes),
        Part("▞", "magenta", "gateway", memory.gateway_bytes),
        Part("▒", "yellow", "other programs", memory.other_bytes),
        Part("#", "red", "stranded", memory.stranded_bytes),
        Part("·", "dim", "available", memory.available_bytes),
    )


def _grants(memory: MemoryReading) -> tuple[Part, ...]:
    held = memory.footprint_bytes or 0
    taken = max(held, memory.granted_bytes)
    free = max(0, (memory.budget_bytes or 0) - taken)
    return (
        Part("█", "green", "held", held),
        Part("▒", "green", "granted", taken - held),
        Part("·", "dim", "free", free),
    )


def _bar_line(
    name: str, whole_bytes: int | None, parts: tuple[Part, ...], note: str, width: int
) -> Text:
    label = f"{name:<7} {size(whole_bytes):>7} "
    cells = max(_LEAST_BAR, width - len(label) - len(note))
    line = Text.assemble((label, "bold"), bar(parts, cells), note)
    line.truncate(width, overflow="ellipsis")
    return line


def _legend(parts: tuple[Part, ...], width: int) -> list[Text]:
    lines: list[Text] = []
    for part in parts:
        entry = Text.assemble((part.glyph, part.style), f" {part.name} {size(part.size_bytes)}")
        if lines and lines[-1].cell_len + len(_GAP) + entry.cell_len <= width:
            lines[-1].append(_GAP).append_text(entry)
        else:
            entry.truncate(width, overflow="ellipsis")
            lines.append(entry)
    return lines
