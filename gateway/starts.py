"""When a gateway that crashes again and again must start with less.

No I/O here; times are Unix times in seconds, as they must hold beyond a boot: a model that panics
the machine (mlx#3186) does so again after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# A load of hundreds of gigabytes takes minutes, so a loop may be that slow.
WINDOW_S: Final = 1800.0
LIMIT: Final = 3


def recent(unclean: Sequence[float], now: float) -> list[float]:
    """Of the starts since the last orderly end, those that still count."""
    return [each for each in unclean if abs(now - each) < WINDOW_S]


def caution(unclean: Sequence[float], now: float) -> str | None:
    """Why nothing should be loaded without being asked for; None if all is well.

    `unclean` are the starts since the last orderly end, without the present one.
    """
    count = len(recent(unclean, now))
    if count < LIMIT:
        return None
    return (
        f"the last {count} starts within {WINDOW_S / 60:.0f} min did not end in order, so no model "
        "was preloaded; requests and `bulkhead load` load as always"
    )
