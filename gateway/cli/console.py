"""Rich output that stays plain text in pipes."""

from __future__ import annotations

import sys

from rich.console import Console


def stdout_console() -> Console:
    """A console that takes text literally, and colours it on a terminal alone."""
    return Console(
        force_terminal=sys.stdout.isatty(),
        markup=False,
        emoji=False,
        highlight=False,
    )


def stderr_console() -> Console:
    return Console(
        stderr=True,
        force_terminal=sys.stderr.isatty(),
        markup=False,
        emoji=False,
        highlight=False,
    )
