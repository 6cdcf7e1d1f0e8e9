"""What the system knows of a process: processor time and memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from bench.results import FailedError


def cpu_s(pids: Mapping[str, int]) -> dict[str, float]:
    """User and system time of each process so far, in seconds, in steps of a clock tick (10 ms)."""
    times = {name: psutil.Process(pid).cpu_times() for name, pid in pids.items()}
    return {name: each.user + each.system for name, each in times.items()}


def memory_bytes(pid: int) -> int:
    """The proportional set size on Linux, the resident set size elsewhere."""
    if sys.platform != "linux":
        return int(psutil.Process(pid).memory_info().rss)
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == "Pss":
            return int(rest.split()[0]) * 1024
    raise AssertionError("smaps_rollup has a Pss line since Linux 4.14")


def wait_until_gone(pid: int, at_most_s: float = 30.0) -> None:
    """Until there is no such process, or nothing of it but its exit status."""
    deadline = time.monotonic() + at_most_s
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            raise FailedError(f"Process {pid} still runs.")
        time.sleep(0.05)
