"""The small program into which the process of a replaced gateway turns if launchd, systemd or a
terminal watches the process. The program stands in for the gateway that serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import socket
from collections.abc import Callable
from typing import Final, NoReturn


def _stand_in(descriptor: int) -> int:
    """The program of the process that stands in for the gateway that serves. The program sends
    signals on to that gateway over a socket. It ends when that gateway ends: with the last status
    that the gateway has sent, or with 1 if the gateway has sent no status. The program runs alone,
    in an interpreter without this package.
    """
    connected = socket.socket(fileno=descriptor)

    def forward(number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):
            connected.send(bytes([number]))

    # Workers that the replaced gateway had started are still children of this process. It does not
    # wait for them, so the kernel must reap them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(signal_number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, range(1, 32))
    status = 1
    while True:
        try:
            received = connected.recv(1)
        except OSError:
            return status
        if not received:
            return status
        status = received[0]


# The text of `_stand_in` is read at the start of this gateway: an upgrade may replace this file.
STAND_IN: Final = f"""
import contextlib, os, signal, socket, sys
{inspect.getsource(_stand_in)}
os.chdir("/")
sys.exit({_stand_in.__name__}(int(sys.argv[1])))
"""


# The signals that the program sends on.
SENT_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)


def become_stand_in(python: str, connected: socket.socket) -> NoReturn:
    """Turn this process into the program. The process keeps its pid and its parent, and needs very
    little memory.
    """
    os.set_inheritable(connected.fileno(), True)
    # Signals that come from now on wait until the program handles them.
    signal.pthread_sigmask(signal.SIG_BLOCK, SENT_ON)
    command = [python, "-I", "-S", "-c", STAND_IN, str(connected.fileno())]
    os.execv(python, command)  # noqa: S606 - no shell is needed


# Seconds in which two equal signals count as one. A terminal signals its whole group of processes,
# so this gateway gets the signal directly, and a second time from the stand-in.
_SAME_S: Final = 1.0


class StandInChannel:
    """The channel to the process that stands in for this gateway. The end of that process, even by
    SIGKILL, counts as a SIGTERM here.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        # When each signal came last, directly and from the stand-in.
        self._direct_at: dict[int, float] = {}
        self._sent_on_at: dict[int, float] = {}

    def duplicate(self) -> socket.socket:
        """A descriptor of the channel for the next gateway."""
        return self._socket.dup()

    def watch(self, signalled: Callable[[int], None]) -> None:
        """Call `signalled` for each signal from now on, and with SIGTERM at the stand-in's end."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, self._read, loop, signalled)

    def unwatch(self) -> None:
        """Stop the watch, since the next gateway watches the channel."""
        asyncio.get_running_loop().remove_reader(self._socket)

    def admits(self, number: int) -> bool:
        """Whether to act on a signal that this process got directly. False: the stand-in has just
        sent the same signal.
        """
        now = asyncio.get_running_loop().time()
        self._direct_at[number] = now
        return now - self._sent_on_at.get(number, -_SAME_S) >= _SAME_S

    def end(self, status: int) -> None:
        """Tell the stand-in that this gateway ends with this status."""
        with contextlib.suppress(OSError):
            self._socket.send(bytes([status]))

    def _read(self, loop: asyncio.AbstractEventLoop, signalled: Callable[[int], None]) -> None:
        try:
            numbers = self._socket.recv(64)
        except BlockingIOError:
            return
        except OSError:
            numbers = b""
        if not numbers:
            loop.remove_reader(self._socket)
            signalled(signal.SIGTERM)
        now = loop.time()
        for signal_number in numbers:
            self._sent_on_at[signal_number] = now
            if now - self._direct_at.get(signal_number, -_SAME_S) >= _SAME_S:
                signalled(signal_number)
