"""The columns of the tables of models, in `status`, `top`, `models` and `list`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from gateway.cli.output import (
    UNKNOWN,
    Column,
    age,
    ago,
    count,
    one_line,
    printable,
    share,
    size,
    table_of,
    tail_of,
    wrapped,
)
from gateway.http.wire.command_bodies import ModelBody, ModelStatus, WorkerStatus
from gateway.models.check_reports import CheckStatus

if TYPE_CHECKING:
    from gateway.library.catalogue import ModelOnDisk


class Figure(Struct, frozen=True):
    """A figure of a model. On the screen of `top` it has a column of `cells` cells, if the screen
    has at least `from_width`; None: `top` doesn't show it.
    """

    heading: str
    cells: int
    from_width: int | None
    value: Callable[[ModelStatus], str]


def _of_worker(value: Callable[[WorkerStatus], str]) -> Callable[[ModelStatus], str]:
    return lambda model: UNKNOWN if model.worker is None else value(model.worker)


def _rate(tokens_per_s: float | None) -> str:
    return UNKNOWN if tokens_per_s is None else f"{tokens_per_s:.0f}"


def _sum(*sizes: int | None) -> int | None:
    known = [size_bytes for size_bytes in sizes if size_bytes is not None]
    return sum(known) if len(known) == len(sizes) else None


def _rest(worker: WorkerStatus) -> int | None:
    """The footprint without weights and caches. The result is at least 0, since footprint and parts
    are read at different moments.
    """
    parts_bytes = _sum(worker.weight_bytes, worker.cache_bytes, worker.buffer_bytes)
    if worker.footprint_bytes is None or parts_bytes is None:
        return None
    return max(0, worker.footprint_bytes - parts_bytes)


# In the order of the columns of `top`.
_STATE: Final = Figure("state", 8, 0, lambda model: model.state)
_PID: Final = Figure("pid", 7, 145, _of_worker(lambda worker: str(worker.pid)))
_HOLDS: Final = Figure("holds", 7, 0, _of_worker(lambda worker: size(worker.footprint_bytes)))
_FLOOR: Final = Figure("floor", 7, 103, lambda model: size(model.floor_bytes))
_LENT: Final = Figure("lent", 7, 79, lambda model: size(model.lent_bytes))
_WANTS: Final = Figure("wants", 7, 103, lambda model: size(model.wanted_bytes))
_WEIGHTS: Final = Figure("weights", 7, 129, _of_worker(lambda worker: size(worker.weight_bytes)))
_CACHES: Final = Figure("caches", 7, 129, _of_worker(lambda worker: size(worker.cache_bytes)))
_BUFFERS: Final = Figure("buffers", 7, 129, _of_worker(lambda worker: size(worker.buffer_bytes)))
_PROMPTS: Final = Figure("prompts", 7, 170, lambda model: size(model.prompt_cache.memory_bytes))
_ON_DISK: Final = Figure("on disk", 7, 170, lambda model: size(model.prompt_cache.disk_bytes))
_CACHED: Final = Figure("cached", 6, 170, lambda model: share(model.prompt_cache.hit_rate))
_GUESSES: Final = Figure("guesses", 7, 178, lambda model: share(model.guesses.accept_rate))
_ACTIVE: Final = Figure("active", 6, 0, lambda model: str(model.active_requests))
_ACTIVE_AGE: Final = Figure("age", 4, 0, lambda model: age(model.oldest_active_s))
_WAITING: Final = Figure("waiting", 7, 0, lambda model: str(model.queue_depth))
_WAITING_AGE: Final = Figure("age", 4, 0, lambda model: age(model.oldest_waiting_s))
_RATE: Final = Figure("tok/s", 5, 0, _of_worker(lambda worker: _rate(worker.tokens_per_s)))
_STEP: Final = Figure("step", 4, 145, _of_worker(lambda worker: age(worker.last_step_age_s)))
_RESTARTS: Final = Figure("restarts", 8, 79, lambda model: str(model.restarts))
_CONTEXT: Final = Figure("context", 0, None, lambda model: count(model.context_tokens))
_CACHES_AND_BUFFERS: Final = Figure(
    "caches",
    0,
    None,
    _of_worker(lambda worker: size(_sum(worker.cache_bytes, worker.buffer_bytes))),
)
_REST: Final = Figure("rest", 0, None, _of_worker(lambda worker: size(_rest(worker))))

_OF_TOP: Final = (
    *(_STATE, _PID, _HOLDS, _FLOOR, _LENT, _WANTS, _WEIGHTS, _CACHES, _BUFFERS, _PROMPTS, _ON_DISK),
    *(_CACHED, _GUESSES, _ACTIVE, _ACTIVE_AGE, _WAITING, _WAITING_AGE, _RATE, _STEP, _RESTARTS),
)
_OF_STATUS: Final = (_PID, _CONTEXT, _ACTIVE, _WAITING, _RESTARTS, _STEP, _CACHED)
_OF_MEMORY: Final = (_HOLDS, _FLOOR, _LENT, _WANTS, _WEIGHTS, _CACHES_AND_BUFFERS, _REST)


def _name(heading: str) -> Column[ModelStatus]:
    return Column(heading, lambda model: printable(model.id), "name")


def _figures(figures: Iterable[Figure]) -> list[Column[ModelStatus]]:
    return [Column(figure.heading, figure.value, "number") for figure in figures]


def status_table(models: list[ModelStatus]) -> Table:
    """The table of `status`. Guesses have a column if a model guesses."""
    guesses = any(model.guesses.accept_rate is not None for model in models)
    figures = (*_OF_STATUS, _GUESSES) if guesses else _OF_STATUS
    columns = [_name("model"), Column("state", _STATE.value, "word"), *_figures(figures)]
    return table_of(models, columns, gap=1)


def memory_table(models: list[ModelStatus]) -> Table:
    """The table with a row for each worker. A loaded model keeps its "floor"; "lent" memory can be
    called back; "wants" is the most that the model could use. The worker itself reports "weights"
    and "caches", which include the memory of a step and freed buffers. "rest" is the memory of
    Python and its libraries.
    """
    loaded = [model for model in models if model.worker is not None]
    return table_of(loaded, [_name("memory"), *_figures(_OF_MEMORY)], gap=1)


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


def top_heading(models: list[ModelStatus], width: int) -> Text:
    """The line of headings. The column of names is as wide as the longest id, if there is room."""
    shown = _shown(width)
    text = Text(_fitted("model", _name_cells(models, shown, width)))
    for figure in shown:
        text.append(f" {figure.heading:>{figure.cells}}")
    text.stylize("bold")
    text.truncate(width)
    return text


def top_row(model: ModelStatus, models: list[ModelStatus], width: int) -> Text:
    """A model's line of figures, and below it the reason of the model's state, if there is one."""
    shown = _shown(width)
    text = Text(_fitted(one_line(model.id), _name_cells(models, shown, width)))
    for figure in shown:
        cell = f" {figure.value(model):>{figure.cells}}"
        text.append(cell, _STYLES.get(model.state, "") if figure is _STATE else "")
    text.truncate(width)
    if model.reason is not None:
        reason = one_line(model.reason)
        for line in wrapped(reason, width - len(_INDENT), _REASON_LINES):
            text.append(f"\n{_INDENT}").append_text(line)
    return text


def _shown(width: int) -> tuple[Figure, ...]:
    return tuple(
        figure for figure in _OF_TOP if figure.from_width is not None and figure.from_width <= width
    )


def _name_cells(models: list[ModelStatus], shown: tuple[Figure, ...], width: int) -> int:
    room = width - sum(1 + figure.cells for figure in shown)
    longest = max((cell_len(one_line(model.id)) for model in models), default=0)
    return max(_LEAST_NAME, min(room, longest))


def _fitted(text: str, cells: int) -> str:
    text = tail_of(text, cells)
    return text + " " * (cells - cell_len(text))


def disk_table(models: list[ModelOnDisk], now: float) -> Table:
    """The table of `list`. `now` is a Unix time in seconds. Results of checks have a column if a
    model was checked.
    """
    columns: list[Column[ModelOnDisk]] = [
        Column("model", lambda model: printable(model.name), "name"),
        Column("size", lambda model: size(model.size_bytes), "number"),
        Column("quantization", lambda model: printable(model.quantization or UNKNOWN), "word"),
        Column("context", lambda model: count(model.context_tokens), "number"),
        Column("can", lambda model: ", ".join(model.abilities) or UNKNOWN, "name"),
        Column("last used", lambda model: ago(model.last_used_at, now), "word"),
        Column("state", disk_state, "word"),
    ]
    if any(model.check is not None for model in models):
        columns.append(Column("check", lambda model: check_result(model.check), "word"))
    return table_of(models, columns)


def check_result(check: CheckStatus | None) -> str:
    """The result of a model's last check in a word or two."""
    if check is None:
        return UNKNOWN
    return f"{check.verdict}, stale" if check.stale else check.verdict


def disk_state(model: ModelOnDisk) -> str:
    if model.problem is not None and model.part_bytes:
        return "unfinished"
    return model.state or ("served" if model.ids and model.problem is None else "not served")


def served_table(models: list[ModelBody], on_disks: dict[str, ModelOnDisk], now: float) -> Table:
    """The table of `models`. `on_disks` has those of them that are on a disk, by their ids."""

    def used_at(model: ModelBody) -> float | None:
        # The gateway knows only uses since its start, the entry of the disk has earlier ones, too.
        on_disk = on_disks.get(model.id)
        return model.last_used_at or (None if on_disk is None else on_disk.last_used_at)

    def size_bytes(model: ModelBody) -> int | None:
        on_disk = on_disks.get(model.id)
        return None if on_disk is None else on_disk.size_bytes

    def context_tokens(model: ModelBody) -> int | None:
        on_disk = on_disks.get(model.id)
        return model.max_model_len or (None if on_disk is None else on_disk.context_tokens)

    columns: list[Column[ModelBody]] = [
        Column("model", lambda model: printable(model.id), "name"),
        Column("state", lambda model: model.state, "word"),
        Column("size", lambda model: size(size_bytes(model)), "number"),
        Column("context", lambda model: count(context_tokens(model)), "number"),
        Column("last used", lambda model: ago(used_at(model), now), "word"),
        Column("aliases", lambda model: printable(", ".join(model.aliases)) or UNKNOWN, "name"),
    ]
    return table_of(models, columns)
