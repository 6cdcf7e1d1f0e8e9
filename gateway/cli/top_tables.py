"""The table of models and the bars of memory, fitted to the width of a screen, without I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gateway.cli.output import UNKNOWN, share, size
from gateway.http.wire.command_bodies import MemoryStatus, ModelStatus, WorkerStatus
from gateway.system.log_lines import escaped

# `wrapped` needs a console to break lines. Nothing is printed on this one.
_CONSOLE: Final = Console(quiet=True)
_UNITS: Final = ((2 * 86400.0, 86400.0, "d"), (2 * 3600.0, 3600.0, "h"), (120.0, 60.0, "m"))


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
    lines = list(Text(text, style).wrap(_CONSOLE, max(1, width)))
    for line in lines:
        line.rstrip()
    if len(lines) > most:
        lines = lines[:most]
        lines[-1].append("…")
        lines[-1].truncate(max(1, width), overflow="ellipsis")
    return lines


def age(seconds: float | None) -> str:
    """The age as text of four cells at most: `0s` to `119s`, `2m`, `2h`, `2d` to `999d`."""
    if seconds is None:
        return "-"
    for least_s, unit_s, unit in _UNITS:
        if seconds >= least_s:
            return f"{seconds / unit_s:.0f}{unit}"
    return f"{seconds:.0f}s"


_INDENT: Final = "  "
_REASON_LINES: Final = 3
_LEAST_NAME: Final = 5
_STYLES: Final = {
    "ready": "green",
    "waiting": "yellow",
    "starting": "cyan",
    "loading": "cyan",
    "draining": "cyan",
    "stopping": "cyan",
    "backoff": "yellow",
    "failed": "bold red",
}


class Column(Struct, frozen=True):
    """A column of `cells` cells. Screens of at least `from_width` cells show the column."""

    heading: str
    cells: int
    from_width: int
    value: Callable[[ModelStatus], str]


def columns(width: int) -> tuple[Column, ...]:
    return tuple(each for each in _COLUMNS if each.from_width <= width)


def heading(models: list[ModelStatus], width: int) -> Text:
    """The line of headings. The column of names is as wide as the longest id, if there is room."""
    shown = columns(width)
    text = Text(_name("model", _name_cells(models, shown, width)))
    for column in shown:
        text.append(f" {column.heading:>{column.cells}}")
    text.stylize("bold")
    text.truncate(width)
    return text


def row(model: ModelStatus, models: list[ModelStatus], width: int) -> Text:
    """A model's line of figures, and below it the reason of the model's state, if there is one."""
    shown = columns(width)
    text = Text(_name(one_line(model.id), _name_cells(models, shown, width)))
    for column in shown:
        cell = f" {column.value(model):>{column.cells}}"
        text.append(cell, _STYLES.get(model.state, "") if column is _STATE else "")
    text.truncate(width)
    if model.reason is not None:
        reason = one_line(model.reason)
        for line in wrapped(reason, width - len(_INDENT), _REASON_LINES):
            text.append(f"\n{_INDENT}").append_text(line)
    return text


def _name_cells(models: list[ModelStatus], shown: tuple[Column, ...], width: int) -> int:
    room = width - sum(1 + each.cells for each in shown)
    longest = max((cell_len(one_line(each.id)) for each in models), default=0)
    return max(_LEAST_NAME, min(room, longest))


def _name(text: str, cells: int) -> str:
    text = tail_of(text, cells)
    return text + " " * (cells - cell_len(text))


def _of_worker(value: Callable[[WorkerStatus], str]) -> Callable[[ModelStatus], str]:
    return lambda model: UNKNOWN if model.worker is None else value(model.worker)


def _rate(tokens_per_s: float | None) -> str:
    return UNKNOWN if tokens_per_s is None else f"{tokens_per_s:.0f}"


_STATE: Final = Column("state", 8, 0, lambda model: model.state)
_COLUMNS: Final = (
    _STATE,
    Column("pid", 7, 145, _of_worker(lambda worker: str(worker.pid))),
    Column("holds", 7, 0, _of_worker(lambda worker: size(worker.footprint_bytes))),
    Column("floor", 7, 103, lambda model: size(model.floor_bytes)),
    Column("lent", 7, 79, lambda model: size(model.lent_bytes)),
    Column("wants", 7, 103, lambda model: size(model.wanted_bytes)),
    Column("weights", 7, 129, _of_worker(lambda worker: size(worker.weight_bytes))),
    Column("caches", 7, 129, _of_worker(lambda worker: size(worker.cache_bytes))),
    Column("buffers", 7, 129, _of_worker(lambda worker: size(worker.buffer_bytes))),
    Column("prompts", 7, 170, lambda model: size(model.prompt_cache.memory_bytes)),
    Column("on disk", 7, 170, lambda model: size(model.prompt_cache.disk_bytes)),
    Column("cached", 6, 170, lambda model: share(model.prompt_cache.hit_rate)),
    Column("guesses", 7, 178, lambda model: share(model.guesses.accept_rate)),
    Column("active", 6, 0, lambda model: str(model.active_requests)),
    Column("age", 4, 0, lambda model: age(model.oldest_active_s)),
    Column("waiting", 7, 0, lambda model: str(model.queue_depth)),
    Column("age", 4, 0, lambda model: age(model.oldest_waiting_s)),
    Column("tok/s", 5, 0, _of_worker(lambda worker: _rate(worker.tokens_per_s))),
    Column("step", 4, 145, _of_worker(lambda worker: age(worker.last_step_age_s))),
    Column("restarts", 8, 79, lambda model: str(model.restarts)),
)


_LEAST_BAR: Final = 8
_GAP: Final = "  "


class BarPart(Struct, frozen=True):
    """A part of a bar. Each part has its own glyph, for terminals without colours."""

    glyph: str
    style: str
    name: str
    size_bytes: int | None


def memory_lines(memory: MemoryStatus, width: int) -> list[Text]:
    """The lines with the bar of the budget, the bar of the machine, and the machine's legend."""
    holders = _holders(memory)
    pressure = "" if memory.pressure is None else f" pressure {memory.pressure}"
    grants = f" held {size(memory.footprint_bytes)}, granted {size(memory.granted_bytes)}"
    return [
        _bar_line("Budget", memory.budget_bytes, _grants(memory), grants, width),
        _bar_line("Machine", memory.total_bytes, holders, pressure, width),
        *_legend(holders, width),
    ]


def bar(parts: tuple[BarPart, ...], width: int) -> Text:
    """A bar of exactly `width` cells, shared in proportion. A part of unknown size gets no cell."""
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


def _holders(memory: MemoryStatus) -> tuple[BarPart, ...]:
    """The holders of memory, in the order of `bulkhead status`. The spares' memory is taken off
    `footprint_bytes`, which includes it.
    """
    held, spare = memory.footprint_bytes, memory.spare_bytes
    models = None if held is None or spare is None else max(0, held - spare)
    return (
        BarPart("█", "green", "models", models),
        BarPart("▓", "cyan", "spare workers", memory.spare_bytes),
        BarPart("▞", "magenta", "gateway", memory.gateway_bytes),
        BarPart("▒", "yellow", "other programs", memory.other_bytes),
        BarPart("#", "red", "stranded", memory.stranded_bytes),
        BarPart("·", "dim", "available", memory.available_bytes),
    )


def _grants(memory: MemoryStatus) -> tuple[BarPart, ...]:
    held = memory.footprint_bytes or 0
    taken = max(held, memory.granted_bytes)
    free = max(0, (memory.budget_bytes or 0) - taken)
    return (
        BarPart("█", "green", "held", held),
        BarPart("▒", "green", "granted", taken - held),
        BarPart("·", "dim", "free", free),
    )


def _bar_line(
    name: str, whole_bytes: int | None, parts: tuple[BarPart, ...], note: str, width: int
) -> Text:
    label = f"{name:<7} {size(whole_bytes):>7} "
    cells = max(_LEAST_BAR, width - len(label) - len(note))
    line = Text.assemble((label, "bold"), bar(parts, cells), note)
    line.truncate(width, overflow="ellipsis")
    return line


def _legend(parts: tuple[BarPart, ...], width: int) -> list[Text]:
    lines: list[Text] = []
    for part in parts:
        entry = Text.assemble((part.glyph, part.style), f" {part.name} {size(part.size_bytes)}")
        if lines and lines[-1].cell_len + len(_GAP) + entry.cell_len <= width:
            lines[-1].append(_GAP).append_text(entry)
        else:
            entry.truncate(width, overflow="ellipsis")
            lines.append(entry)
    return lines
