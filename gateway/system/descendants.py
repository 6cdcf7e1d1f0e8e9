"""What a worker has started: it ends with the worker, and can't be found once that has ended."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
from typing import Final

import psutil

from gateway.system.lane import Lane
from gateway.system.logs.line import about
from gateway.system.process_identity import ProcessIdentity, descendants, send

logger = logging.getLogger(__name__)

# For a look at all processes, which takes some ten milliseconds; no end waits any longer for it.
_LOOK_S: Final = 0.5
# What could not be signalled just now is tried again so often, a second apart.
_TRIES: Final = 5


class Descendants:
    """Of the worker `pid`, by the last look."""

    def __init__(self, pid: int, lane: Lane) -> None:
        self._pid = pid
        self._lane = lane
        self._known: set[ProcessIdentity] = set()
        self._loop = asyncio.get_running_loop()

    async def look(self) -> None:
        """Without an answer there are those that were known."""
        try:
            found = await self._lane.run(
                functools.partial(descendants, [self._pid]), _LOOK_S, "the list of processes"
            )
        except (OSError, psutil.Error) as error:
            logger.warning(
                "What worker %d has started can't be looked for: %s",
                self._pid,
                error,
                extra=about(pid=self._pid),
            )
        else:
            self.note(found[self._pid])

    def note(self, found: set[ProcessIdentity]) -> None:
        # None may mean that the process has just ended, and that they have lost their parent.
        self._known = found or self._known

    def end(self) -> None:
        """At once."""
        self._end(_TRIES)

    def _end(self, tries: int) -> None:
        left = set()
        for process in self._known:
            try:
                send(process, signal.SIGKILL)
            except OSError as error:
                left.add(process)
                logger.warning("Process %d can't be ended: %s", process.pid, error)
        self._known = left
        if left and tries > 1:
            self._loop.call_later(1.0, self._end, tries - 1)
