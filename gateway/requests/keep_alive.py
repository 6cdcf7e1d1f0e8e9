"""How long a model stays loaded after its last request."""

from __future__ import annotations

import math
import re
from typing import Final

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


def parse_keep_alive(value: float | str) -> float:
    """Seconds, as ollama reads them: a number of seconds, or text such as "5m" or "1h30m". Infinity
    for a negative one.

    Raises:
        ValueError: with a sentence for the client.
    """
    seconds = _parse_text(value) if isinstance(value, str) else float(value)
    if math.isnan(seconds):
        raise ValueError("keep_alive is no number")
    return math.inf if seconds < 0 else seconds


def _parse_text(text: str) -> float:
    unsigned = text.strip().removeprefix("-")
    sign = -1.0 if text.strip().startswith("-") else 1.0
    if re.fullmatch(r"\d{1,12}(\.\d{1,12})?", unsigned):
        return sign * float(unsigned)
    parts = _PART.findall(unsigned)
    if not parts or "".join(number + unit for number, unit in parts) != unsigned:
        raise ValueError(
            f"keep_alive is {text[:40]!r}: send seconds, or a text such as 30s, 5m or 1h30m; 0 "
            "unloads the model at once, a negative one keeps it"
        )
    return sign * sum(float(number) * _UNITS[unit] for number, unit in parts)
