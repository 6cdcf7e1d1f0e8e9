"""How lines of logs are printed: wrapped on a terminal, whole in a pipe, or as JSON."""

from __future__ import annotations

import sys
from typing import Final

import click
from rich.text import Text

from gateway.cli.console import stdout_console
from gateway.system.log_lines import as_json as json_line
from gateway.system.log_lines import escaped, human, local_time, parsed, stamp_of

_TAB: Final = 8
_STYLES: Final = {"warning": "yellow", "error": "red", "critical": "bold red"}


class LogPrinter:
    """For the log of a model's workers, or the gateway's own."""

    def __init__(self, model: str | None, *, as_json: bool) -> None:
        self._model = model
        self._as_json = as_json
        self._console = None if as_json or not sys.stdout.isatty() else stdout_console()

    def print(self, line: str) -> None:
        entry = parsed(line) if self._model is None else None
        if self._as_json:
            text = json_line(self._worker_entry(line) if entry is None else entry)
        else:
            text = _worker_text(line) if entry is None else human(entry)
        if self._console is None:
            click.echo(text)
        else:
            style = _STYLES.get(str((entry or {}).get("level")), "")
            self._console.print(Text(text, style, overflow="fold"))

    def _worker_entry(self, line: str) -> dict[str, str | None]:
        at, text = _split(line)
        return {"time": at, "model": self._model, "text": text}


def _worker_text(line: str) -> str:
    """Without colours of its own: they may come from anywhere."""
    at, text = _split(line)
    text = escaped(click.unstyle(text).expandtabs(_TAB))
    return text if at is None else f"{local_time(at)} {text}"


def _split(line: str) -> tuple[str | None, str]:
    """A worker's line: its time, and what it printed."""
    at = stamp_of(line)
    return at, line if at is None else line.removeprefix(at).removeprefix(" ")
