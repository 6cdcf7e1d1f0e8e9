"""The other end of a connection, as far as the system knows of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from typing import Final

from gateway.http.connection.exchange import Exchange

# A client that has closed its side may have gone, or wait for its answer: both look the same
# until something is written, and then until the other side's system had time to object. Answers
# that haven't begun are often there sooner than that is worth asking.
_ASKED_S: Final = 1.0
_HEARD_S: Final = 0.05
# What the system takes of an answer ahead of what it has sent. It would be megabytes otherwise, for
# each client that doesn't read, before anybody noticed that it doesn't.
_UNSENT: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_UNSENT_BYTES: Final = 128 << 10
# For SO_LINGER: on, for no time.
_AT_ONCE: Final = struct.pack("ii", 1, 0)


class Peer:
    """Whoever is connected by `transport`."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._look: asyncio.TimerHandle | None = None
        if _UNSENT is not None:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.IPPROTO_TCP, _UNSENT, _UNSENT_BYTES)

    @property
    def encrypted(self) -> bool:
        return self._transport.get_extra_info("sslcontext") is not None

    def duplicate(self) -> int:
        """A descriptor of the connection that outlives this one."""
        return os.dup(self._socket.fileno())

    def reset(self) -> None:
        """End it, and have the system forget what it holds for it: it would keep that for minutes
        otherwise, for a client that doesn't take it.
        """
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self._transport.abort()

    def watch(self, served: Callable[[], Exchange | None]) -> None:
        """It has closed its side: end the connection once it is known that nobody is there. What is
        being `served` at the time may be nothing any more.
        """
        present = served()
        if present is not None and present.response_started:
            self._ask(served)
        else:
            self._look = self._loop.call_later(_ASKED_S, self._ask, served)

    def close(self) -> None:
        if self._look is not None:
            self._look.cancel()

    def _ask(self, served: Callable[[], Exchange | None]) -> None:
        """Write something, if that changes nothing for a client that is still there."""
        if (present := served()) is not None:
            present.nudge()
            self._look = self._loop.call_later(_HEARD_S, self._hear, served)

    def _hear(self, served: Callable[[], Exchange | None]) -> None:
        """What the other side's system says of it."""
        if served() is None:
            return
        if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()
        else:
            self._look = self._loop.call_later(_ASKED_S, self._hear, served)

    @property
    def _socket(self) -> socket.socket:
        connected: socket.socket = self._transport.get_extra_info("socket")
        return connected
