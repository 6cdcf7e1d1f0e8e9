"""What a pull shows on stderr: a line that changes on a terminal, elsewhere one now and then."""

from __future__ import annotations

import time
from typing import Final

from rich.text import Text

from gateway.cli.bodies import PullReading
from gateway.cli.console import stderr_console
from gateway.cli.printable import printable
from gateway.system.notation import format_size

_SAID_EVERY_S: Final = 10.0
_BAR_CELLS: Final = 24


class PullView:
    def __init__(self, model: str) -> None:
        self._console = stderr_console()
        self._spinner = self._console.status(Text(f"{printable(model)}: asking"))
        self._said_outlook = False
        self._said_at = 0.0
        self._said = ""

    def __enter__(self) -> PullView:
        if self._console.is_terminal:
            self._spinner.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._spinner.stop()

    def show(self, reading: PullReading) -> None:
        if reading.outlook is not None and not self._said_outlook and reading.state == "pulling":
            self._said_outlook = True
            which = f"{reading.repository}, {format_size(reading.total_bytes or 0)}"
            self._print(f"{which}. {reading.outlook.sentence}")
        if reading.state not in ("preparing", "pulling"):
            return
        line = progress_line(reading)
        if self._console.is_terminal:
            self._spinner.update(Text(line))
        elif line != self._said and time.monotonic() - self._said_at >= _SAID_EVERY_S:
            self._said, self._said_at = line, time.monotonic()
            self._print(line)

    def _print(self, text: str) -> None:
        self._console.print(printable(text), soft_wrap=not self._console.is_terminal)


def progress_line(reading: PullReading) -> str:
    """`name [####    ] 1.2 GB of 4.0 GB, 85.0 MB/s, 33 s left`."""
    name = printable(reading.repository or reading.model)
    if not reading.total_bytes:
        return f"{name}: {printable(reading.reason or 'asking what there is')}"
    done_bytes = reading.done_bytes or 0
    filled = _BAR_CELLS * done_bytes // reading.total_bytes
    bar = "#" * filled + " " * (_BAR_CELLS - filled)
    parts = [f"{name} [{bar}] {format_size(done_bytes)} of {format_size(reading.total_bytes)}"]
    if reading.reason is not None:
        parts.append(printable(reading.reason))
    elif reading.bytes_per_s is not None:
        parts.append(f"{format_size(int(reading.bytes_per_s))}/s")
        if reading.seconds_left is not None:
            parts.append(f"{time_left(reading.seconds_left)} left")
    return ", ".join(parts)


def time_left(seconds: float) -> str:
    """`8 s`, `4 min`, `2 h 10 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
