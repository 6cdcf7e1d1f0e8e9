"""What the processes of a gateway hold together at one moment, by readings that take a while."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import psutil

from gateway.system.memory import footprint
from gateway.system.memory_reading import FootprintError
from tests.support.gateway import Gateway

_BETWEEN_SAMPLES_S = 0.05


class Sampler:
    """The sums of the footprints of all processes below a gateway, and of their own peaks."""

    def __init__(self, gateway: Gateway) -> None:
        self.highest_bytes = 0
        self.highest_peaks_bytes = 0
        self.count = 0
        self._peaks: dict[int, int] = {}
        self._gateway = psutil.Process(gateway.pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        assert self.count

    def _sample(self) -> None:
        while True:
            held = held_at_once(child.pid for child in self._gateway.children(recursive=True))
            self._peaks = {pid: max(self._peaks.get(pid, 0), held[pid]) for pid in held}
            self.highest_bytes = max(self.highest_bytes, sum(held.values()))
            self.highest_peaks_bytes = max(self.highest_peaks_bytes, sum(self._peaks.values()))
            self.count += 1
            if self._over.wait(_BETWEEN_SAMPLES_S):
                return


def held_at_once(pids: Iterable[int]) -> dict[int, int]:
    """Bytes that these processes held at the same moment, at least.

    Readings of several processes are of several moments. Between these one process gives memory
    back or ends, and another one takes what has come free: their sum may be more than was ever
    held. So each process is read twice, the second time in the opposite order. Between the two
    rounds there is a moment at which each held its smaller reading, unless it gave memory back and
    took it again meanwhile.
    """
    first = {pid: _own_bytes(pid) for pid in pids}
    second = {pid: _own_bytes(pid) for pid in reversed(first)}
    return {pid: min(first[pid], second[pid]) for pid in first}


def _own_bytes(pid: int) -> int:
    """The footprint of a process: 0 if it has ended. Until a child runs a program of its own, its
    memory is its parent's.
    """
    try:
        process = psutil.Process(pid)
        parent = process.parent()
        if parent is not None and parent.cmdline() == process.cmdline():
            return 0
        return footprint(pid).current_bytes
    except (psutil.Error, FootprintError):
        return 0
