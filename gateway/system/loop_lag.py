"""How late the event loop is for what it was told to do."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from gateway.system.histogram import Histogram
from gateway.system.tasks import Tasks

_EVERY_S: Final = 0.25
LAG_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LoopLag:
    """`late_s` has one value for each quarter of a second."""

    def __init__(self) -> None:
        self.late_s = Histogram(LAG_S)

    def watch(self, tasks: Tasks) -> None:
        """From now on."""
        tasks.keep(self._look, "lag of the event loop", 0.0)

    async def _look(self) -> None:
        # The loop's own clock stands still while it is busy, and goes on while the machine sleeps.
        due = time.monotonic() + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        self.late_s.observe(max(0.0, time.monotonic() - due))
