"""Times as people write them."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART: Final = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)\s*(ms|[smhd])\s*")
# What `parse_time` takes, for those who can't call it.
TIME_PATTERN: Final = r"^\s*(\d{1,12}(\.\d{1,12})?|(\d{1,12}(\.\d{1,12})?\s*(ms|[smhd])\s*)+)\s*$"


def parse_time(text: str) -> float:
    """Seconds of "30s", "500ms", "5m", "2h", "7d", "1h30m"; without a unit they are seconds.

    Raises:
        ValueError: it is something else.
    """
    text = text.strip()
    if re.fullmatch(TIME_PATTERN, text, re.ASCII) is None:
        raise ValueError(f"{text[:40]!r} is not a time")
    parts = _PART.findall(text)
    if not parts:
        return float(text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def format_time(seconds: float) -> str | None:
    """Text that `parse_time` reads back exactly, such as 90s, 10m, 500ms or 7d; None if none is."""
    for unit, unit_s in _UNITS.items():
        count = round(seconds / unit_s)
        if count and parse_time(text := f"{count}{unit}") == seconds:
            return text
    return None
