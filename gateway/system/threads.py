"""Threads that nobody waits for when the process ends."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable


def start_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """A daemon thread.

    Raises:
        OSError: the system gives no other one, for want of memory or by a limit of processes.
            `threading` says so by a RuntimeError, and nobody who waits for an errno would hear it.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise BlockingIOError(errno.EAGAIN, f"no thread can be started: {error}") from error
    return thread
