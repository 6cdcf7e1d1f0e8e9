"""Notices the death of the gateway, the same way on both systems: a kernel event and a poll.

Linux's PDEATHSIG has no counterpart on macOS, and the way that is tested must be the way that runs
there.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable

_POLL_S = 1.0


def watch_parent(
    parent_pid: int, on_death: Callable[[], None], grace_s: Callable[[], float]
) -> None:
    """Call `on_death` from a thread once the parent is gone, and end the process after `grace_s`,
    asked for then.

    The end is unconditional: a worker that nobody supervises must not keep its memory because its
    orderly stop is stuck.
    """

    def watch() -> None:
        wait_for_exit = _exit_wait(parent_pid)
        while os.getppid() == parent_pid:
            wait_for_exit(_POLL_S)
        on_death()
        time.sleep(grace_s())
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


if sys.platform == "darwin":

    def _exit_wait(pid: int) -> Callable[[float], None]:
        """Wait for NOTE_EXIT; a process that is gone already raises ESRCH, and getppid tells."""
        queue = select.kqueue()
        event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
        try:
            queue.control([event], 0, 0)
        except OSError:
            return time.sleep
        return lambda timeout_s: _ignore(queue.control(None, 1, timeout_s))

else:

    def _exit_wait(pid: int) -> Callable[[float], None]:
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return time.sleep
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return lambda timeout_s: _ignore(poller.poll(timeout_s * 1000))


def _ignore(_: object) -> None:
    """The loop asks getppid; the event only ends the wait early."""
