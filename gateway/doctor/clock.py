"""Whether the machine's clock can be right."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gateway.doctor.finding import Finding, ok, warning
from gateway.doctor.installation import Installation

_CHECK: Final = "clock"
_TOLERATED_S: Final = 3600.0


def look_at_clock(installation: Installation) -> Iterator[Finding]:
    state_dir = installation.state_dir
    newest: tuple[float, Path] | None = None
    for folder in (state_dir.path, state_dir.logs):
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                with contextlib.suppress(OSError):
                    found = path.stat().st_mtime, path
                    newest = found if newest is None else max(newest, found)
    yield judge_clock(time.time(), newest)


def judge_clock(now: float, newest: tuple[float, Path] | None) -> Finding:
    """Unix times. `newest` is the file that was written last, by this clock."""
    told = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M} UTC"
    if newest is None or newest[0] <= now + _TOLERATED_S:
        return ok(_CHECK, f"It is {told}.")
    written = f"{datetime.fromtimestamp(newest[0], UTC):%Y-%m-%d %H:%M} UTC"
    return warning(
        _CHECK,
        f"It is {told}, and {newest[1]} was written on {written}: the clock is wrong, or was.",
        "Set it (on a Mac: System Settings, General, Date & Time; `sudo sntp -sS time.apple.com`). "
        "Keys and certificates end by it, and the hub's TLS fails where it is far off.",
    )
