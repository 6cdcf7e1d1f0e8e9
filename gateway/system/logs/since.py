"""When to begin: how long ago, or a time."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from gateway.system.logs.line import stamp

_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def since_stamp(text: str, now: float) -> str:
    """The stamp for `10m`, `2h`, or an ISO 8601 time; one without a zone is of this machine's.

    `now` is a Unix time in seconds.

    Raises:
        ValueError: it is neither; the text says what would be.
    """
    try:
        if ago := _AGO.fullmatch(text):
            return stamp(max(0.0, now - float(ago[1]) * _SECONDS[ago[2]]))
        return stamp(datetime.fromisoformat(text).astimezone(UTC).timestamp())
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{text[:100]!r} is neither a time such as 2026-01-31T12:30 nor how long ago, such as "
            "90s, 10m, 2h or 3d."
        ) from None
