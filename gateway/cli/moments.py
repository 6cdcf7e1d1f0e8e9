"""Times as people say them."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ((2 * 86400.0, 86400.0, "d"), (2 * 3600.0, 3600.0, "h"), (120.0, 60.0, "min"))


def duration(seconds: float) -> str:
    """`0.3 s`, `12 s`, `2 min`, `26 h`, `3 d`."""
    for least_s, unit_s, unit in _UNITS:
        if seconds >= least_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def ago(at: float | None, now: float) -> str:
    """A Unix time, or never if there is none; clocks of two machines may differ."""
    if at is None:
        return "never"
    return f"{duration(now - at)} ago" if now - at >= 1 else "now"
