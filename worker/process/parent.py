"""Notices the death of the gateway, the same way on both systems: a kernel event and a poll.

Linux's PDEATHSIG has no counterpart on macOS, and the way that is tested must be the way that runs
there. It also speaks of the process that has started this one, and a gateway that was replaced
leaves its workers to another.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

from protocol.process_exit import ProcessExit

_POLL_S = 1.0


class ParentWatch:
    """Calls `on_death` from a thread once the gateway is gone, and ends the process after
    `grace_s`, asked for then.

    The end is unconditional: a worker that nobody supervises must not keep its memory because its
    orderly stop is stuck.
    """

    def __init__(
        self, parent_pid: int, on_death: Callable[[], None], grace_s: Callable[[], float]
    ) -> None:
        self._pid = parent_pid
        self._on_death = on_death
        self._grace_s = grace_s
        self._start(parent_pid, lambda: os.getppid() != parent_pid)

    def follow(self, pid: int) -> None:
        """From now on it is this process whose death matters, whoever the parent is."""
        self._pid = pid
        self._start(pid, lambda: not _exists(pid))

    def _start(self, pid: int, gone: Callable[[], bool]) -> None:
        threading.Thread(
            target=self._watch, args=(pid, gone), name="parent-watch", daemon=True
        ).start()

    def _watch(self, pid: int, gone: Callable[[], bool]) -> None:
        with contextlib.closing(ProcessExit(pid)) as exit_:
            while self._pid == pid and not (exit_.comes_within(_POLL_S) or gone()):
                pass
        if self._pid != pid:
            return
        self._on_death()
        time.sleep(self._grace_s())
        os._exit(1)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
