"""The models as a table that fits the screen: no I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct
from rich.cells import cell_len
from rich.text import Text

from gateway.cli.bodies import ModelReading, WorkerReading
from gateway.cli.memory_table import UNKNOWN, share, size
from gateway.cli.top.fitting import age, one_line, tail_of, wrapped

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
    """Shown on screens of `from_width` cells and more."""

    heading: str
    cells: int
    from_width: int
    value: Callable[[ModelReading], str]


def columns(width: int) -> tuple[Column, ...]:
    return tuple(each for each in _COLUMNS if each.from_width <= width)


def heading(models: tuple[ModelReading, ...], width: int) -> Text:
    """The columns' names. The name column is as wide as the longest id, if there is room."""
    shown = columns(width)
    text = Text(_name("model", _name_cells(models, shown, width)))
    for column in shown:
        text.append(f" {column.heading:>{column.cells}}")
    text.stylize("bold")
    text.truncate(width)
    return text


def row(model: ModelReading, models: tuple[ModelReading, ...], width: int) -> Text:
    """A line of numbers; under it why the model is as it is, if there is a reason."""
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


def _name_cells(models: tuple[ModelReading, ...], shown: tuple[Column, ...], width: int) -> int:
    room = width - sum(1 + each.cells for each in shown)
    longest = max((cell_len(one_line(each.id)) for each in models), default=0)
    return max(_LEAST_NAME, min(room, longest))


def _name(text: str, cells: int) -> str:
    text = tail_of(text, cells)
    return text + " " * (cells - cell_len(text))


def _of_worker(value: Callable[[WorkerReading], str]) -> Callable[[ModelReading], str]:
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
    Column("active", 6, 0, lambda model: str(model.active_requests)),
    Column("age", 4, 0, lambda model: age(model.oldest_active_s)),
    Column("waiting", 7, 0, lambda model: str(model.queue_depth)),
    Column("age", 4, 0, lambda model: age(model.oldest_waiting_s)),
    Column("tok/s", 5, 0, _of_worker(lambda worker: _rate(worker.tokens_per_s))),
    Column("step", 4, 145, _of_worker(lambda worker: age(worker.last_step_age_s))),
    Column("restarts", 8, 79, lambda model: str(model.restarts)),
)
