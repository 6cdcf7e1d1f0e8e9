"""When the machine's word that it is short of memory counts. No I/O; the caller brings the time.

On a Mac "warn" begins as soon as the compressor holds half of what isn't wired, as for a moment
while a model loads (xnu, vm_compressor.c). What was given up for that would be loaded again.
"""

from __future__ import annotations

from typing import Final

from gateway.system.memory_reading import Pressure

_LASTS_S: Final = 5.0
_LEVELS: Final[tuple[Pressure, ...]] = ("warn", "critical")


class Shortage:
    """By readings that come a few times a second."""

    def __init__(self) -> None:
        self._since: dict[Pressure, float] = {}

    def lasting(self, pressure: Pressure | None, now: float) -> Pressure | None:
        """The highest level that the machine has been at, or above, for some seconds; None: it is
        not short.
        """
        reached = _LEVELS[: _LEVELS.index(pressure) + 1] if pressure in _LEVELS else ()
        self._since = {each: self._since.get(each, now) for each in reached}
        lasting = [each for each in reached if now - self._since[each] >= _LASTS_S]
        return lasting[-1] if lasting else None
