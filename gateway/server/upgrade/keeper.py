"""The channel to who stands in for this gateway: signals come in, and its end goes out."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable
from typing import Final

# A terminal's signal reaches the whole group, and comes once more from who stands in.
_SAME_S: Final = 1.0


class Keeper:
    """Who ends by SIGKILL takes this gateway along, in order."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._came: dict[int, float] = {}
        self._handed: dict[int, float] = {}

    def duplicate(self) -> socket.socket:
        """For the next gateway."""
        return self._socket.dup()

    def watch(self, signalled: Callable[[int], None]) -> None:
        """Tell of signals from now on; one that stands in no more is a SIGTERM."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, self._read, loop, signalled)

    def unwatch(self) -> None:
        """The next gateway does."""
        asyncio.get_running_loop().remove_reader(self._socket)

    def admits(self, number: int) -> bool:
        """A signal came to this process itself: whether it isn't the same once more."""
        now = asyncio.get_running_loop().time()
        self._came[number] = now
        return now - self._handed.get(number, -_SAME_S) >= _SAME_S

    def end(self, status: int) -> None:
        """This gateway ends with this status."""
        with contextlib.suppress(OSError):
            self._socket.send(bytes([status]))

    def _read(self, loop: asyncio.AbstractEventLoop, signalled: Callable[[int], None]) -> None:
        try:
            told = self._socket.recv(64)
        except BlockingIOError:
            return
        except OSError:
            told = b""
        if not told:
            loop.remove_reader(self._socket)
            signalled(signal.SIGTERM)
        now = loop.time()
        for number in told:
            self._handed[number] = now
            if now - self._came.get(number, -_SAME_S) >= _SAME_S:
                signalled(number)
