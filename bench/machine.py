"""The machine that is measured, and processor time and memory of its processes."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

import psutil

from bench.results import FailedError, MeasuringMachine


def describe_machine() -> MeasuringMachine:
    return MeasuringMachine(
        processor=_processor(),
        cores=os.cpu_count() or 0,
        system=_system(),
        python=platform.python_version(),
        mlx=version("mlx"),
        mlx_lm=version("mlx-lm"),
    )


def cpu_s(pids: Mapping[str, int]) -> dict[str, float]:
    """User and system time of each process so far, in seconds, in steps of a clock tick (10 ms)."""
    times = {name: psutil.Process(pid).cpu_times() for name, pid in pids.items()}
    return {name: moment.user + moment.system for name, moment in times.items()}


def share_core(pids: Iterable[int]) -> None:
    """Have the busiest thread of each process run on one core, the same for all: in a virtual
    machine the cores' speeds differ, and change from second to second. Linux alone can do that.
    """
    if sys.platform != "linux":
        return
    core = max(os.sched_getaffinity(0))
    for pid in pids:
        threads = psutil.Process(pid).threads()
        busiest = max(threads, key=lambda thread: thread.user_time + thread.system_time)
        os.sched_setaffinity(busiest.id, {core})


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
    """Wait until there is no such process, or nothing of it but its exit status."""
    deadline = time.monotonic() + at_most_s
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            raise FailedError(f"Process {pid} still runs.")
        time.sleep(0.05)


def _processor() -> str:
    if sys.platform == "darwin":
        return subprocess.check_output(
            ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], text=True
        ).strip()
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _system() -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    return f"{platform.system()} {platform.release()}"
