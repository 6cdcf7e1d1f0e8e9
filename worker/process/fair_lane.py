"""Threads on which those who share a worker have turns."""

from __future__ import annotations

import logging
import threading
from bisect import insort
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from worker.engines.turns import Turns

logger = logging.getLogger("worker")


@dataclass(order=True)
class _Work:
    """Work that waits for a thread. Priorities are lower for what is to be done first."""

    priority: int
    number: float
    serial: int
    sharer: str = field(compare=False)
    run: Callable[[], None] = field(compare=False)


class FairLane:
    """Threads that do pieces of work by priority, and pieces of one priority in the turns of their
    sharers. No sharer has more than `most` threads at a time. So with one more thread another
    sharer needn't wait for the end of a long piece.
    """

    def __init__(self, threads: int, most: int, name: str) -> None:
        self._most = most
        self._threads = ThreadPoolExecutor(threads, name)
        self._lock = threading.Lock()
        self._turns = Turns()
        self._waiting: list[_Work] = []
        self._running: Counter[str] = Counter()
        self._serial = 0
        # Threads that found only work of sharers that have enough threads.
        self._idle = 0

    def submit(
        self, run: Callable[[], None], sharer: str, share: int, priority: int, cost: float
    ) -> None:
        """Have `run` called on a thread. `cost` is in any unit, the same for all pieces."""
        with self._lock:
            self._serial += 1
            number = self._turns.take(sharer, share, cost)
            insort(self._waiting, _Work(-priority, number, self._serial, sharer, run))
        self._threads.submit(self._run_next)

    def _run_next(self) -> None:
        with self._lock:
            free = (each for each in self._waiting if self._running[each.sharer] < self._most)
            work = next(free, None)
            if work is None:
                self._idle += 1
                return
            self._waiting.remove(work)
            self._turns.begin(work.number)
            self._running[work.sharer] += 1
        try:
            work.run()
        except Exception:
            logger.exception("A piece of work failed")
        with self._lock:
            self._running -= Counter([work.sharer])
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._threads.submit(self._run_next)
