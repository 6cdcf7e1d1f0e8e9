"""Imports that take seconds: at low priority, and left alone by Python's collector of cycles.

A process can lower its priority but needs privileges to raise it again. A thread of its own can be
lowered, and then end. Linux has a nice value for each thread (setpriority(2), "C library/kernel
differences"), macOS the background state of a thread (setpriority(2), PRIO_DARWIN_THREAD).
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
import threading

logger = logging.getLogger(__name__)

if sys.platform == "darwin":
    _PRIO_DARWIN_THREAD = 3
    _PRIO_DARWIN_BG = 0x1000

    def _lower_this_thread() -> None:
        os.setpriority(_PRIO_DARWIN_THREAD, 0, _PRIO_DARWIN_BG)

else:
    _LOWEST = 19

    def _lower_this_thread() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)


def import_at_low_priority(name: str) -> None:
    """Import a module on a thread of low priority, and wait for it. Errors are left to the later
    import of the same module.
    """

    def run() -> None:
        try:
            _lower_this_thread()
            importlib.import_module(name)
        except Exception:
            logger.debug("%s could not be imported beforehand", name, exc_info=True)

    thread = threading.Thread(target=run, name="imports", daemon=True)
    thread.start()
    thread.join()


def leave_imports_alone() -> None:
    """Take all objects of now out of the collector's sight: they stay until the end. To look
    through them takes 30 ms, the time of several tokens, in some answer of each worker.
    """
    gc.collect()
    gc.freeze()
