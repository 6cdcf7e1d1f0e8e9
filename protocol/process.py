"""A worker's process: how its end is noticed, how long it may live alone, and its signals."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from typing import Final

if sys.platform == "darwin":

    class ProcessExit:
        """NOTE_EXIT of a process (kqueue(2)). It comes for zombies, too."""

        def __init__(self, pid: int) -> None:
            self._queue: select.kqueue | None = select.kqueue()
            event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
            try:
                self._queue.control([event], 0, 0)
            except OSError:
                self.close()

        @property
        def watched(self) -> bool:
            """False: there is no such process, or none that may be watched."""
            return self._queue is not None

        def comes_within(self, seconds: float) -> bool:
            """Wait for it, or for so long. What isn't watched doesn't come."""
            if self._queue is None:
                time.sleep(seconds)
                return False
            return bool(self._queue.control(None, 1, seconds))

        def close(self) -> None:
            if self._queue is not None:
                self._queue.close()
                self._queue = None

else:

    class ProcessExit:
        """A process's descriptor, which its exit makes readable (pidfd_open(2)), reaped or not."""

        def __init__(self, pid: int) -> None:
            self._descriptor: int | None = None
            with contextlib.suppress(OSError):
                self._descriptor = os.pidfd_open(pid)
            self._poller = select.poll()
            if self._descriptor is not None:
                self._poller.register(self._descriptor, select.POLLIN)

        @property
        def watched(self) -> bool:
            """False: there is no such process, or none that may be watched."""
            return self._descriptor is not None

        def comes_within(self, seconds: float) -> bool:
            """Wait for it, or for so long. What isn't watched doesn't come."""
            if self._descriptor is None:
                time.sleep(seconds)
                return False
            return bool(self._poller.poll(seconds * 1000))

        def close(self) -> None:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None


_SHORTEST_S: Final = 3.0
_S_PER_GB: Final = 0.5
_LONGEST_S: Final = 60.0


def grace_s(held_bytes: int) -> float:
    """Then it ends, whatever its engine does: the more it holds, the longer that may take to give
    it back.
    """
    return min(_LONGEST_S, _SHORTEST_S + _S_PER_GB * held_bytes / 1e9)


# A worker prints the Python stacks of all its threads, whatever they are stuck in.
DUMP_STACKS: Final = signal.SIGUSR2
