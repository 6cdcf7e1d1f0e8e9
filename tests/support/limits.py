"""Shortages: limits of a process that runs, lowered for a while."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.platforms import LINUX

_USER = "54321"
_KEPT = "-all,+dac_override,+dac_read_search"


def limited_user() -> tuple[str, ...]:
    """The beginning of a command that a limit of processes, and so of threads, is to bind: it
    doesn't bind root.
    """
    if not LINUX:
        pytest.skip("elsewhere the limit of processes isn't one of threads")
    if os.getuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("root has no limit of processes, and there is no setpriv")
    return ("setpriv", "--reuid", _USER, f"--inh-caps={_KEPT}", f"--ambient-caps={_KEPT}")


@contextlib.contextmanager
def no_new_threads(pid: int) -> Iterator[None]:
    """Neither threads nor processes, for a process that was started as a limited user."""
    with _limited(pid, resource.RLIMIT_NPROC, 1, resource.getrlimit(resource.RLIMIT_NPROC)[0]):
        yield


@contextlib.contextmanager
def no_descriptors(pid: int) -> Iterator[None]:
    """No more than are open all the time."""
    if not LINUX:
        pytest.skip("limits of a running process are Linux's")
    # Below what it waits for poll(2) would fail, which is another fault. One that is open for a
    # moment only would be free again in the next, and serve all that asks for one.
    taken = _descriptors(pid)
    for _ in range(20):
        time.sleep(0.02)
        taken &= _descriptors(pid)
    lowest_free = next(number for number in range(len(taken) + 1) if number not in taken)
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    before = next(limit.split()[3] for limit in limits if limit.startswith("Max open files"))
    with _limited(pid, resource.RLIMIT_NOFILE, lowest_free, int(before)):
        yield


def _descriptors(pid: int) -> set[int]:
    folder = Path(f"/proc/{pid}/fd")
    # To list the own takes one as well.
    return {int(path.name) for path in list(folder.iterdir()) if os.path.lexists(path)}


@contextlib.contextmanager
def _limited(pid: int, limit: int, value: int, before: int) -> Iterator[None]:
    code = "import resource, sys; pid, limit, soft = map(int, sys.argv[1:]); "
    code += "resource.prlimit(pid, limit, (soft, resource.prlimit(pid, limit)[1]))"

    def change(soft: int) -> None:
        # To ask takes descriptors, of which the own process may have none.
        if pid == os.getpid() or psutil.Process(pid).uids().real == os.getuid():
            resource.prlimit(pid, limit, (soft, resource.prlimit(pid, limit)[1]))
            return
        # As its user: root may lack the capability to do it to another's process.
        command = [*limited_user(), sys.executable, "-c", code]
        subprocess.run([*command, str(pid), str(limit), str(soft)], check=True)

    change(value)
    try:
        yield
    finally:
        # It may have ended.
        if pid == os.getpid() or psutil.pid_exists(pid):
            change(before)
