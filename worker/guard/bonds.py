"""How the system binds a command's processes to their guard."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

if sys.platform == "linux":
    _PDEATHSIG = 1
    _CHILD_SUBREAPER = 36
    _prctl = ctypes.CDLL(None, use_errno=True).prctl

    def adopt_orphans() -> None:
        """Become the parent of descendants that lose theirs (prctl(2), PR_SET_CHILD_SUBREAPER)."""
        _prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)

    def bound_to(guard_pid: int) -> Callable[[], None] | None:
        """What a child calls before its program starts: it is killed when the guard is
        (PR_SET_PDEATHSIG). The thread that starts the child must live as long as the guard.
        """

        def bind() -> None:
            _prctl(_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != guard_pid:
                os._exit(1)

        return bind

else:

    def adopt_orphans() -> None:
        """Do nothing: orphans become children of launchd, and are found by mark and session."""

    def bound_to(guard_pid: int) -> Callable[[], None] | None:
        """None: macOS binds no child to its parent. The gateway kills what a guard has left."""
        return None
