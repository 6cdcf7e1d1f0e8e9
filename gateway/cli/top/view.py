"""What `bulkhead top` shows: readings and events go in, lines come out. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from rich.text import Text

from gateway.cli.bodies import GatewayReading, ModelReading, PromptCacheReading
from gateway.cli.memory_table import share, size
from gateway.cli.top import models
from gateway.cli.top.fitting import age, one_line, wrapped
from gateway.cli.top.happenings import Happening
from gateway.cli.top.memory import memory_lines

KEPT_EVENTS: Final = 200
_NOTICE_LINES: Final = 3
_SCROLLBAR: Final = 1


class View:
    """The last picture of a gateway, kept while it is away. Times are monotonic seconds."""

    def __init__(self, url: str) -> None:
        self.reading: GatewayReading | None = None
        self._url = one_line(url)
        self._happenings: deque[Happening] = deque(maxlen=KEPT_EVENTS)
        self._lost_at: float | None = None
        self._lost_by = ""

    @property
    def lost(self) -> bool:
        """What is shown isn't what is."""
        return self._lost_at is not None

    @property
    def models(self) -> tuple[ModelReading, ...]:
        return () if self.reading is None else self.reading.models

    def take(self, reading: GatewayReading, happenings: Iterable[Happening]) -> None:
        """The gateway answers. Events that are known already change nothing."""
        self.reading = reading
        self._lost_at = None
        known = {each.event.id for each in self._happenings}
        self._happenings.extend(each for each in happenings if each.event.id not in known)

    def lose(self, why: str, now: float) -> None:
        """It doesn't."""
        self._lost_at = now if self._lost_at is None else self._lost_at
        self._lost_by = why

    def head(self, width: int) -> list[Text]:
        """Everything above the models."""
        if self.reading is None:
            return [Text(f"Bulkhead at {self._url}", "bold")]
        reading = self.reading
        title = Text(
            f"Bulkhead {one_line(reading.version)} at {self._url}: {one_line(reading.state)}, "
            f"pid {reading.pid}, up {age(reading.uptime_s)}",
            "bold",
        )
        lines = [title, *memory_lines(reading.memory, width), self._totals()]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return [*lines, models.heading(reading.models, width - _SCROLLBAR)]

    def rows(self, width: int) -> list[Text]:
        """One for each model, in the order of `models`; they leave a column for a scroll bar."""
        return [models.row(each, self.models, width - _SCROLLBAR) for each in self.models]

    def notice(self, width: int, now: float) -> list[Text]:
        """What goes before everything else, if there is anything."""
        if self._lost_at is not None:
            text = f"No answer for {age(now - self._lost_at)}, trying again. {self._lost_by}"
            return wrapped(one_line(text), width, _NOTICE_LINES, "bold red")
        if self.reading is not None and self.reading.reason is not None:
            text = f"Careful: {self.reading.reason}"
            return wrapped(one_line(text), width, _NOTICE_LINES, "bold yellow")
        return []

    def events(self, width: int, count: int) -> list[Text]:
        """The last ones, the newest at the end."""
        last = list(self._happenings)[-count:] if count > 0 else []
        return [each.line(width) for each in last]

    def _totals(self) -> Text:
        active = sum(each.active_requests for each in self.models)
        waiting = sum(each.queue_depth for each in self.models)
        rates = (each.worker.tokens_per_s for each in self.models if each.worker is not None)
        per_s = sum(each for each in rates if each is not None)
        prompts = PromptCacheReading() if self.reading is None else self.reading.prompt_cache
        return Text(
            f"Requests: {active} active, {waiting} waiting; {per_s:.0f} tokens/s; "
            f"prompts {size(prompts.memory_bytes)}, {size(prompts.disk_bytes)} on disk, "
            f"{share(prompts.hit_rate)} cached"
        )
