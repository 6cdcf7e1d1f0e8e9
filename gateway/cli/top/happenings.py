"""Events as lines of one screen: no I/O."""

from __future__ import annotations

import time
from typing import Any, Final

from msgspec import Struct
from rich.text import Text

from gateway.cli.bodies import EventReading
from gateway.cli.top.fitting import one_line, tail_of
from gateway.system.notation import format_size

# A model's id has a quarter of the line.
_NAME_SHARE: Final = 4
_LEAST_NAME: Final = 12
_PLACED: Final = ("id", "at", "event", "model")
_BAD: Final = ("breaker", "hang", "escalation", "stranded", "overgrown", "refuse")


class Happening(Struct, frozen=True):
    """An event; `fields` is all that it tells."""

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
            (one_line(self._told()), "yellow" if self._bad() else ""),
        )
        text.truncate(width, overflow="ellipsis")
        return text

    def _told(self) -> str:
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


def _pair(key: str, value: object) -> str:
    if key.endswith("_bytes") and isinstance(value, int):
        return f"{key.removesuffix('_bytes')}={format_size(value).replace(' ', '')}"
    if key.endswith("_s") and isinstance(value, int | float):
        return f"{key.removesuffix('_s')}={value:.1f}s"
    return f"{key}={value}"
