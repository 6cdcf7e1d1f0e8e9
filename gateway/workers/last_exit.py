"""How a model's last worker ended."""

from __future__ import annotations

import time
from typing import Final

from msgspec import Struct

from gateway.workers.process import ExitStatus
from gateway.workers.worker_log import WorkerLog

# A fatal error prints the stacks of all threads: its first line must be among these.
_LOG_TAIL_LINES: Final = 80


class LastExit(Struct, frozen=True):
    """`at` is a Unix time in seconds."""

    at: float
    code: int | None
    signal: str | None
    reason: str
    log_tail: list[str]


def last_exit(status: ExitStatus, reason: str, log: WorkerLog) -> LastExit:
    """Of a worker that has just ended."""
    return LastExit(
        at=time.time(),
        code=status.code,
        signal=status.signal,
        reason=reason,
        log_tail=log.tail(_LOG_TAIL_LINES),
    )
