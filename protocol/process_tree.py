"""The processes of a command: those below its guard, those that carry its mark, and all others in
the sessions of these.

On Linux a process without its parent gets the guard as its parent. On macOS such a process is found
by its mark, a variable that processes inherit, or by its session: Apple's own programs, as sh, curl
and git, hide their environment (xnu bsd/kern/kern_sysctl.c).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Final

import psutil

# The variable whose value marks the processes of a command.
MARK: Final = "BULKHEAD_COMMAND"
_LOOK_S: Final = 0.02
# While a process listens at one of them, no other account's process can listen at the other one.
# That isn't so of "::", which many programs take for IPv6 alone.
_LOOPBACK: Final = "127.0.0.1"
_ANY: Final = "0.0.0.0"  # noqa: S104
# As Linux says of a session whose leader can't be seen from here.
_NO_SESSION: Final = 0


def below(pid: int) -> list[psutil.Process]:
    """The living descendants of a process; empty if there is no such process."""
    try:
        return _living(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


class CommandProcesses:
    """The processes of a command, which carry `mark`. Sessions are remembered from one look to the
    next as long as they have processes: their numbers may be used again afterwards.
    """

    def __init__(self, guard_pid: int, mark: str) -> None:
        self._guard_pid = guard_pid
        self._mark = mark
        self._sessions: set[int] = set()

    def below(self) -> list[psutil.Process]:
        """The living processes below the guard."""
        processes = below(self._guard_pid)
        self._sessions |= _sessions(processes) - {_session(self._guard_pid)}
        return processes

    def all(self) -> list[psutil.Process]:
        """All processes of the command. Blocks for some ten milliseconds."""
        children = self.below()
        others = marked(self._mark, self._sessions)
        self._sessions = _sessions(others)
        return list({process.pid: process for process in (*others, *children)}.values())

    def kill(self, seconds: float) -> bool:
        """As `kill_marked`, also by the sessions that were seen. The guard has ended."""
        return kill_marked(self._mark, seconds, self._sessions)


def marked(mark: str, sessions: Collection[int] = ()) -> list[psutil.Process]:
    """All living processes with this mark, and those of their sessions and of these `sessions`.
    Blocks for some ten milliseconds.
    """
    everyone = list(psutil.process_iter())
    having = [process for process in everyone if _mark_of(process) == mark]
    theirs = _sessions(having) | set(sessions)
    return _living({*having, *(process for process in everyone if _session(process.pid) in theirs)})


def _sessions(processes: Iterable[psutil.Process]) -> set[int]:
    """The sessions of these processes, without that of the calling process."""
    return {_session(process.pid) for process in processes} - {_session(0), _NO_SESSION}


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return _NO_SESSION


def _mark_of(process: psutil.Process) -> str | None:
    # The environment of another account's process can't be read, nor that of a zombie.
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get(MARK)
    return None


def _living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if is_living(process)]


def is_living(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def listens(process: psutil.Process, port: int) -> bool:
    """Whether the process listens at this TCP port of 127.0.0.1. Blocks for some milliseconds."""
    with contextlib.suppress(psutil.Error, OSError):
        return any(
            net_connection.status == psutil.CONN_LISTEN
            and (net_connection.laddr.ip, net_connection.laddr.port)
            in ((_LOOPBACK, port), (_ANY, port))
            for net_connection in process.net_connections("tcp4")
        )
    return False


def send(processes: Iterable[psutil.Process], *signals: signal.Signals) -> None:
    """Send the signals to each of these processes, as long as it lives."""
    for process in processes:
        for signal_number in signals:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal_number)


def kill_marked(mark: str, seconds: float, sessions: Collection[int] = ()) -> bool:
    """Kill all processes that `marked` finds, also those that are started meanwhile. Blocks until
    there are none, and returns True, or until `seconds` have passed.
    """
    deadline = time.monotonic() + seconds
    while processes := marked(mark, sessions):
        send(processes, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def held_bytes(processes: Iterable[psutil.Process]) -> int:
    """About the bytes that the processes hold together; shared pages count several times."""
    return sum(_resident(processes))


def _resident(processes: Iterable[psutil.Process]) -> Iterator[int]:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            yield process.memory_info().rss
