"""The main thread of a follower. This thread never computes, so that it can end the process even if
the engine thread hangs.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from typing import Final, NoReturn

from protocol.process import LEFT_ALONE, grace_s
from worker.process.gateway import ParentWatch, end_process, set_up_process

logger = logging.getLogger("worker")

# When rank 0 is gone, the follower waits so long for rank 0's last order, which may not have been
# read yet.
_LAST_ORDERS_S: Final = 0.5


class _Life:
    """The end of a follower's process, and its exit status. Any thread may ask for the end."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.stopping = threading.Event()
        self.status = 0

    def stop(self) -> None:
        self.stopping.set()

    def lose(self, reason: str) -> None:
        """End the process because rank 0 is gone, unless rank 0 has ordered the end."""
        if self.stopping.wait(_LAST_ORDERS_S):
            return
        logger.error("%s: this rank ends", reason)
        self.status = LEFT_ALONE
        self.stopping.set()
        time.sleep(_grace_s())
        os._exit(LEFT_ALONE)


def _grace_s() -> float:
    """Seconds in which the engine thread may return from a step and give its memory back, once
    other ranks are gone. Some collective operations then end with an error, and others never
    return.
    """
    # Only the engine thread imports MLX, and perhaps it hasn't yet.
    mlx = sys.modules.get("mlx.core")
    return grace_s(0 if mlx is None else mlx.get_active_memory() + mlx.get_cache_memory())


def run(address: str, key: bytes, rank: int, silence_s: float, parent_pid: int) -> NoReturn:
    """Follow rank 0 until rank 0 ends the work or is gone. Then end the process."""
    life = _Life()
    set_up_process(life.stop)
    ParentWatch(parent_pid, life.stop, _grace_s)

    def work() -> None:
        try:
            # Imported here because these imports take seconds, and the main thread must hear
            # signals meanwhile.
            from worker.ranks.follow import follow
            from worker.ranks.links import FollowerLink

            link = FollowerLink(address, key, rank, silence_s, life.lose)
            follow(link, rank, life.stopping.is_set)
            life.stop()
            link.close()
        except Exception:
            traceback.print_exc()
            # A step may also fail because other ranks are gone. Then `lose` has set the status.
            life.status = life.status or 1
        life.stop()
        life.over.set()

    threading.Thread(target=work, name="engine", daemon=True).start()
    life.stopping.wait()
    # Python handles signals between two waits.
    while not life.over.wait(1.0):
        continue
    end_process(life.status)
