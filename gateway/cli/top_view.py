"""The screen of `bulkhead top` as lines of text, made from readings and events, without I/O: the
bars of memory, the models, and the events.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct
from rich.text import Text

from gateway.cli.model_table import top_heading, top_row
from gateway.cli.output import age, one_line, share, size, tail_of, wrapped
from gateway.http.wire.command_bodies import MemoryStatus, ModelStatus, Status, UpstreamStatus
from gateway.system.notation import format_size

# In the line of an event the model's id gets a quarter of the width.
_NAME_SHARE: Final = 4
_LEAST_NAME: Final = 12
_PLACED: Final = ("id", "at", "event", "model")
_BAD: Final = ("breaker", "hang", "escalation", "stranded", "overgrown", "refuse")


class EventReading(Struct, frozen=True):
    """The fields that every event has. The other fields of an event depend on its kind."""

    id: int
    at: float
    event: str
    model: str | None = None


class Happening(Struct, frozen=True):
    """An event with all its fields."""

    event: EventReading
    fields: dict[str, Any]

    @property
    def kind(self) -> str:
        return self.event.event

    def line(self, width: int) -> Text:
        model = one_line(self.event.model or "-")
        text = Text.assemble(
            (time.strftime("%H:%M:%S", time.localtime(self.event.at)), "dim"),
            f" {tail_of(model, max(_LEAST_NAME, width // _NAME_SHARE))} ",
            (one_line(self._description()), "yellow" if self._bad() else ""),
        )
        text.truncate(width, overflow="ellipsis")
        return text

    def _description(self) -> str:
        fields = {key: value for key, value in self.fields.items() if key not in _PLACED}
        if self.kind == "state":
            change = f"{fields.pop('before', '-')} → {fields.pop('after', '-')}"
            why = fields.get("reason") or fields.get("cause")
            return f"{change}: {why}" if why else change
        if self.kind in ("lend", "recall") and isinstance(fields.get("change_bytes"), int):
            return _moved(fields)
        pairs = (_pair(key, value) for key, value in fields.items() if value is not None)
        return " ".join([self.kind, *pairs])

    def _bad(self) -> bool:
        return self.kind in _BAD or (self.kind == "exit" and not self.fields.get("expected"))


def _moved(fields: dict[str, Any]) -> str:
    change = fields["change_bytes"]
    more = f"{format_size(change)} lent" if change >= 0 else f"{format_size(-change)} called back"
    limit, free = fields.get("limit_bytes"), fields.get("free_bytes")
    if not isinstance(limit, int) or not isinstance(free, int):
        return more
    return f"{more}: it may hold {format_size(limit)}; {format_size(max(0, free))} free"


def _upstream_line(upstream: UpstreamStatus) -> Text:
    text = (
        f"Upstream {upstream.name}: {len(upstream.models)} models, "
        f"{upstream.active_requests} active"
    )
    if upstream.reason is None:
        return Text(one_line(text))
    return Text(one_line(f"{text}; {upstream.reason}"), "yellow")


def _pair(key: str, value: object) -> str:
    if key.endswith("_bytes") and isinstance(value, int):
        return f"{key.removesuffix('_bytes')}={format_size(value).replace(' ', '')}"
    if key.endswith("_s") and isinstance(value, int | float):
        return f"{key.removesuffix('_s')}={value:.1f}s"
    return f"{key}={value}"


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
    sizes = [bar_part.size_bytes or 0 for bar_part in parts]
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


_MOST_EVENTS: Final = 200
_NOTICE_LINES: Final = 3
_SCROLLBAR: Final = 1


class View:
    """The texts of the screen, by the last status and the last events of a gateway. These stay
    while the gateway doesn't answer. Times are monotonic seconds.
    """

    def __init__(self, url: str) -> None:
        self.reading: Status | None = None
        self._url = one_line(url)
        self._happenings: deque[Happening] = deque(maxlen=_MOST_EVENTS)
        self._lost_at: float | None = None
        self._lost_by = ""

    @property
    def lost(self) -> bool:
        """Whether the status is old because the gateway doesn't answer."""
        return self._lost_at is not None

    @property
    def models(self) -> list[ModelStatus]:
        return [] if self.reading is None else self.reading.models

    def show(self, reading: Status, happenings: Iterable[Happening]) -> None:
        """Show a status of the gateway, and those of the events that are new."""
        self.reading = reading
        self._lost_at = None
        known = {happening.event.id for happening in self._happenings}
        self._happenings.extend(
            happening for happening in happenings if happening.event.id not in known
        )

    def show_silence(self, why: str, now: float) -> None:
        """Show that the gateway doesn't answer, and why."""
        self._lost_at = now if self._lost_at is None else self._lost_at
        self._lost_by = why

    def head(self, width: int) -> list[Text]:
        """The lines above the models."""
        if self.reading is None:
            return [Text(f"Bulkhead at {self._url}", "bold")]
        reading = self.reading
        title = Text(
            f"Bulkhead {one_line(reading.version)} at {self._url}: {one_line(reading.state)}, "
            f"pid {reading.pid}, up {age(reading.uptime_s)}",
            "bold",
        )
        lines = [title, *memory_lines(reading.memory, width), self._totals(reading)]
        lines += map(_upstream_line, reading.upstreams)
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return [*lines, top_heading(reading.models, width - _SCROLLBAR)]

    def rows(self, width: int) -> list[Text]:
        """A text for each of `models`, a cell narrower than `width`, for a scroll bar."""
        return [top_row(model, self.models, width - _SCROLLBAR) for model in self.models]

    def notice(self, width: int, now: float) -> list[Text]:
        """The lines of a warning, for the top of the screen."""
        if self._lost_at is not None:
            text = f"No answer for {age(now - self._lost_at)}, trying again. {self._lost_by}"
            return wrapped(one_line(text), width, _NOTICE_LINES, "bold red")
        if self.reading is not None and self.reading.reason is not None:
            text = f"Careful: {self.reading.reason}"
            return wrapped(one_line(text), width, _NOTICE_LINES, "bold yellow")
        return []

    def events(self, width: int, count: int) -> list[Text]:
        """The last events, the newest at the end."""
        last = list(self._happenings)[-count:] if count > 0 else []
        return [happening.line(width) for happening in last]

    def _totals(self, reading: Status) -> Text:
        active = sum(model.active_requests for model in self.models)
        waiting = sum(model_status.queue_depth for model_status in self.models)
        rates = (model.worker.tokens_per_s for model in self.models if model.worker is not None)
        per_s = sum(rate for rate in rates if rate is not None)
        prompts = reading.prompt_cache
        return Text(
            f"Requests: {active} active, {waiting} waiting; {per_s:.0f} tokens/s; "
            f"prompts {size(prompts.memory_bytes)}, {size(prompts.disk_bytes)} on disk, "
            f"{share(prompts.hit_rate)} cached"
        )
