"""The lines of one rank among those of its model."""

from __future__ import annotations

from gateway.workers.worker_log import WorkerLog


class RankLog:
    """Says of each line which rank has printed it. Rank 0 begins the log."""

    def __init__(self, log: WorkerLog, rank: int) -> None:
        self._log = log
        self._rank = rank

    def begin(self, pid: int, incarnation: int) -> None:
        """The log was begun by rank 0."""

    def add(self, line: str) -> None:
        self._log.add(f"[rank {self._rank}] {line}")
