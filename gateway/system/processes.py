"""Processes, told apart from later processes with the same pid, and their descendants."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psutil
from msgspec import Struct

from gateway.system.boot import present_boot
from gateway.system.lane import Lane
from gateway.system.log_lines import about


class ProcessIdentity(Struct, frozen=True):
    """`started` is only compared for equality; its meaning depends on the system."""

    pid: int
    started: str


class ProcessGoneError(Exception):
    """There is no such process."""


_BOOT: Final = present_boot()

if sys.platform == "linux":
    # Field 22 of proc_pid_stat(5), counted behind the name, which may contain any character.
    _START_FIELD: Final = 19

    def _started(pid: int) -> str:
        """The boot, and the start in clock ticks since it. Setting the clock changes neither."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError) as error:
            # A process whose file can't be read is another user's, so no gateway here started it.
            raise ProcessGoneError(str(error)) from error
        return f"{_BOOT}:{stat.rpartition(')')[2].split()[_START_FIELD]}"

else:
    from gateway.system.memory_darwin import started
    from gateway.system.memory_reading import FootprintError

    def _started(pid: int) -> str:
        """The boot, and the start in ticks since it. Setting the clock changes neither. A process
        whose start can't be read is another user's, so no gateway here started it.
        """
        try:
            return f"{_BOOT}:{started(pid)}"
        except FootprintError as error:
            raise ProcessGoneError(str(error)) from error


def identify(pid: int) -> ProcessIdentity:
    """Raises: ProcessGoneError; OSError: the start can't be read, as without a free descriptor."""
    return ProcessIdentity(pid, _started(pid))


def alive(identity: ProcessIdentity) -> bool:
    """Whether this very process still runs. A zombie, which has no memory, doesn't count.

    Raises:
        OSError: the system doesn't tell, as without a free descriptor.
    """
    try:
        return (
            _started(identity.pid) == identity.started
            and psutil.Process(identity.pid).status() != psutil.STATUS_ZOMBIE
        )
    except (ProcessGoneError, psutil.Error):
        return False


def send(identity: ProcessIdentity, *signals: signal.Signals) -> None:
    """Send the signals to this very process, as long as it runs.

    Raises:
        OSError: the system doesn't tell whether the process runs.
    """
    for signal_number in signals:
        if alive(identity):
            # The process may end at any time.
            with contextlib.suppress(ProcessLookupError):
                os.kill(identity.pid, signal_number)


def descendants(pids: Iterable[int]) -> dict[int, set[ProcessIdentity]]:
    """For each pid the children of the process, their children and so on.

    Descendants are found by their parents, not by their process group: workers share the gateway's
    group. A process that has lost its parent can't be found any more, so a caller that wants to end
    the descendants must look for them before the parent ends.
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


logger = logging.getLogger(__name__)

# The longest wait for a look at all processes, which usually takes some ten milliseconds.
_LOOK_S: Final = 0.5
# How often to try to kill a process; the tries are a second apart.
_TRIES: Final = 5


class Descendants:
    """The descendants of the worker `pid`, as the last look found them."""

    def __init__(self, pid: int, lane: Lane) -> None:
        self._pid = pid
        self._lane = lane
        self._known: set[ProcessIdentity] = set()
        self._loop = asyncio.get_running_loop()

    async def look(self) -> None:
        """Look for descendants now. If the look takes too long, the known ones stay."""
        try:
            by_pid = await self._lane.run(
                functools.partial(descendants, [self._pid]), _LOOK_S, "the list of processes"
            )
        except (OSError, psutil.Error) as error:
            logger.warning(
                "The processes that worker %d has started can't be looked for: %s",
                self._pid,
                error,
                extra=about(pid=self._pid),
            )
        else:
            self.remember(by_pid[self._pid])

    def remember(self, present: set[ProcessIdentity]) -> None:
        # If none are found, the worker may have just ended, and the descendants have lost their
        # parent.
        self._known = present or self._known

    def end(self) -> None:
        """Kill the known descendants at once."""
        self._end(_TRIES)

    def _end(self, tries: int) -> None:
        left = set()
        for process in self._known:
            try:
                send(process, signal.SIGKILL)
            except OSError as error:
                left.add(process)
                logger.warning("Process %d can't be ended: %s", process.pid, error)
        self._known = left
        if left and tries > 1:
            self._loop.call_later(1.0, self._end, tries - 1)
