"""Processes that are told from later ones with the same pid."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psutil
from msgspec import Struct

from gateway.system.boot import present_boot


class ProcessIdentity(Struct, frozen=True):
    """`started` is compared as it is; what it means depends on the system."""

    pid: int
    started: str


class ProcessGoneError(Exception):
    """There is no such process."""


_BOOT: Final = present_boot()

if sys.platform == "linux":
    # Of the fields behind the name, which may contain anything: proc_pid_stat(5), field 22.
    _START_FIELD: Final = 19

    def _started(pid: int) -> str:
        """Clock ticks since this boot, which no change of the clock touches."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError) as error:
            # What isn't ours to read is another user's, and none that we know.
            raise ProcessGoneError(str(error)) from error
        return f"{_BOOT}:{stat.rpartition(')')[2].split()[_START_FIELD]}"

else:
    from gateway.system.memory.footprint_darwin import started
    from gateway.system.memory.reading import FootprintError

    def _started(pid: int) -> str:
        """Ticks since this boot, which no change of the clock touches. Another user's process,
        whose start can't be read, is none of ours.
        """
        try:
            return f"{_BOOT}:{started(pid)}"
        except FootprintError as error:
            raise ProcessGoneError(str(error)) from error


def identify(pid: int) -> ProcessIdentity:
    """Raises: ProcessGoneError; OSError if it can't be told: no descriptor is left, for one."""
    return ProcessIdentity(pid, _started(pid))


def alive(identity: ProcessIdentity) -> bool:
    """Whether this very process still runs. A zombie doesn't: it holds nothing.

    Raises:
        OSError: it can't be told.
    """
    try:
        return (
            _started(identity.pid) == identity.started
            and psutil.Process(identity.pid).status() != psutil.STATUS_ZOMBIE
        )
    except (ProcessGoneError, psutil.Error):
        return False


def send(identity: ProcessIdentity, *signals: signal.Signals) -> None:
    """Signal this very process, if it still runs.

    Raises:
        OSError: it can't be told whether it does.
    """
    for number in signals:
        if alive(identity):
            # It may end at any time.
            with contextlib.suppress(ProcessLookupError):
                os.kill(identity.pid, number)


def descendants(pids: Iterable[int]) -> dict[int, set[ProcessIdentity]]:
    """Children, their children and so on, of each of these, from one look at all processes.

    By parentage and not by group: workers share the gateway's group. What has lost its parent
    belongs to nobody any more, so whoever wants to end it must have looked before.
    """
    children: dict[int, list[int]] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            children.setdefault(process.ppid(), []).append(process.pid)
    return {pid: set(_identified(_below(pid, children))) for pid in pids}


def _below(pid: int, children: dict[int, list[int]]) -> Iterable[int]:
    unseen = list(children.get(pid, ()))
    seen: set[int] = set()
    while unseen:
        child = unseen.pop()
        if child not in seen:
            seen.add(child)
            unseen += children.get(child, ())
    return seen


def _identified(pids: Iterable[int]) -> Iterable[ProcessIdentity]:
    for pid in pids:
        with contextlib.suppress(ProcessGoneError):
            yield identify(pid)
