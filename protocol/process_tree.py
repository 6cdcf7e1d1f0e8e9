"""The processes of a command: those below its guard, and those that carry its mark.

On Linux a process without its parent gets the guard as its parent. On macOS such a process is only
found by its mark, a variable that processes inherit.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable, Iterator
from typing import Final

import psutil

# The variable whose value marks the processes of a command.
MARK: Final = "BULKHEAD_COMMAND"
_LOOK_S: Final = 0.02
# While a process listens at one of them, no other account's process can listen at the other one.
# That isn't so of "::", which many programs take for IPv6 alone.
_LOOPBACK: Final = "127.0.0.1"
_ANY: Final = "0.0.0.0"  # noqa: S104


def below(pid: int) -> list[psutil.Process]:
    """The living descendants of a process; empty if there is no such process."""
    try:
        return _living(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def marked(mark: str) -> list[psutil.Process]:
    """All living processes with this mark. Blocks for some ten milliseconds."""
    return _living(each for each in psutil.process_iter() if _mark_of(each) == mark)


def _mark_of(process: psutil.Process) -> str | None:
    # The environment of another account's process can't be read, nor that of a zombie.
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get(MARK)
    return None


def _living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    return [each for each in processes if is_living(each)]


def is_living(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def listens(process: psutil.Process, port: int) -> bool:
    """Whether the process listens at this TCP port of 127.0.0.1. Blocks for some milliseconds."""
    with contextlib.suppress(psutil.Error, OSError):
        return any(
            each.status == psutil.CONN_LISTEN
            and (each.laddr.ip, each.laddr.port) in ((_LOOPBACK, port), (_ANY, port))
            for each in process.net_connections("tcp4")
        )
    return False


def send(processes: Iterable[psutil.Process], *signals: signal.Signals) -> None:
    """Send the signals to each of these processes, as long as it lives."""
    for each in processes:
        for number in signals:
            with contextlib.suppress(psutil.Error):
                each.send_signal(number)


def kill_marked(mark: str, seconds: float) -> bool:
    """Kill all processes with this mark, also those that are started meanwhile. Blocks until there
    are none, and returns True, or until `seconds` have passed.
    """
    deadline = time.monotonic() + seconds
    while found := marked(mark):
        send(found, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def held_bytes(processes: Iterable[psutil.Process]) -> int:
    """About the bytes that the processes hold together; shared pages count several times."""
    return sum(_resident(processes))


def _resident(processes: Iterable[psutil.Process]) -> Iterator[int]:
    for each in processes:
        with contextlib.suppress(psutil.Error):
            yield each.memory_info().rss
