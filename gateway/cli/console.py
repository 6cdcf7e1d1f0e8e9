"""Rich output that stays plain text in pipes."""

from __future__ import annotations

import sys
from typing import IO, Any, Final

from rich.console import Console

# Wider than any row: whoever reads a pipe wants one to a line.
_UNBROKEN: Final = 100_000


def stdout_console() -> Console:
    """A console that takes text literally, and colours and breaks it on a terminal alone."""
    return _console(sys.stdout)


def stderr_console() -> Console:
    return _console(sys.stderr)


def _console(stream: IO[Any]) -> Console:
    terminal = stream.isatty()
    return Console(
        stderr=stream is sys.stderr,
        width=None if terminal else _UNBROKEN,
        force_terminal=terminal,
        markup=False,
        emoji=False,
        highlight=False,
    )
