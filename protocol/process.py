"""A worker's process: how other processes notice its exit, its life as an orphan, its signals."""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
import time
from typing import Final

# A worker that gets this signal prints the Python stacks of all its threads, even if they hang.
DUMP_STACKS: Final = signal.SIGUSR2
# The exit status of a rank that ends because it has lost another rank.
LEFT_ALONE: Final = 3

_SHORTEST_S: Final = 3.0
_S_PER_GB: Final = 0.5
_LONGEST_S: Final = 60.0

if sys.platform == "darwin":

    def _watch(pid: int) -> select.kqueue:
        """A queue that gets NOTE_EXIT of a process, even of a zombie (kqueue(2)).

        Raises OSError.
        """
        queue = select.kqueue()
        event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
        try:
            queue.control([event], 0, 0)
        except OSError:
            queue.close()
            raise
        return queue

    def _has_ended(queue: select.kqueue, seconds: float) -> bool:
        return bool(queue.control(None, 1, seconds))

else:

    def _watch(pid: int) -> io.FileIO:
        """A descriptor that the exit of a process makes readable, whether the process is reaped or
        not (pidfd_open(2)). Raises OSError.
        """
        return io.FileIO(os.pidfd_open(pid))

    def _has_ended(descriptor: io.FileIO, seconds: float) -> bool:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(seconds * 1000))


class ProcessExit:
    """The exit of a process, as the kernel reports it."""

    def __init__(self, pid: int) -> None:
        self._watch = None
        with contextlib.suppress(OSError):
            self._watch = _watch(pid)

    @property
    def watched(self) -> bool:
        """Whether the process is watched. False if there is no such process, or if it may not be
        watched.
        """
        return self._watch is not None

    def comes_within(self, seconds: float) -> bool:
        """Wait for the exit, at most for so many seconds. Returns whether the process has ended;
        False if it isn't watched.
        """
        if self._watch is None:
            time.sleep(seconds)
            return False
        return _has_ended(self._watch, seconds)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def grace_s(held_bytes: int) -> float:
    """How many seconds an orphaned worker may live. After them it ends, even if its engine hangs. A
    worker that holds more memory may need more time to give the memory back.
    """
    return min(_LONGEST_S, _SHORTEST_S + _S_PER_GB * held_bytes / 1e9)
