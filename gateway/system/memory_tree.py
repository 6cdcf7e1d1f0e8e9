"""The memory of a command: of its guard, and of all processes that it has started."""

from __future__ import annotations

import contextlib
import math
import time
from typing import Final

from gateway.system.memory import FootprintGauge
from gateway.system.memory_reading import Footprint, FootprintError
from protocol.process_tree import below, marked

# How often all processes are looked through for those that have lost their parents.
_MARKED_S: Final = 10.0


class TreeGauge:
    """Reads the footprint of a guard and of its command's processes, which carry `mark`."""

    def __init__(self, guard_pid: int, mark: str) -> None:
        self._guard_pid = guard_pid
        self._mark = mark
        self._gauges = {guard_pid: FootprintGauge(guard_pid)}
        self._strays: set[int] = set()
        self._looked_at = -math.inf

    def read(self) -> Footprint:
        """The sum of all processes, without a peak: their peaks were at different times.

        Raises:
            FootprintError: the guard's footprint can't be read.
        """
        guard = self._gauges[self._guard_pid].read()
        found = [guard]
        for pid in self._others():
            # Processes end while they are looked at.
            with contextlib.suppress(FootprintError):
                found.append(self._gauges.setdefault(pid, FootprintGauge(pid)).read())
        return Footprint(
            host_bytes=sum(each.host_bytes for each in found),
            host_peak_bytes=None,
            card_bytes=sum(each.card_bytes for each in found),
        )

    def _others(self) -> set[int]:
        now = time.monotonic()
        if now - self._looked_at >= _MARKED_S:
            self._looked_at = now
            self._strays = {each.pid for each in marked(self._mark)}
        others = self._strays | {each.pid for each in below(self._guard_pid)}
        self._gauges = {
            pid: gauge
            for pid, gauge in self._gauges.items()
            if pid == self._guard_pid or pid in others
        }
        return others
