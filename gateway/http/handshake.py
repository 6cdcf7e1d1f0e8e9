"""TLS handshakes, within the bounds on connections."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from gateway.http.connection import Connection
from gateway.http.connection_limits import ClientTimeouts, ConnectionLimiter, Doing, Place
from gateway.system.tasks import Tasks


class Handshake(asyncio.Protocol):
    """A connection until its TLS handshake is done.

    asyncio's own servers report a connection only after the handshake, so a client that opened
    thousands and sent nothing would use a descriptor for each, without a bound. Here the connection
    counts from the beginning, has a deadline for the handshake, and is the first to be ended for
    another.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limiter: ConnectionLimiter,
        context: ssl.SSLContext,
        tasks: Tasks,
    ) -> None:
        """Each handshake is a task in `tasks`."""
        self.timeouts = ClientTimeouts(asyncio.get_running_loop().time())
        self._secured = functools.partial(
            _Secured, config, server_state, app_state, _loop, limiter=limiter
        )
        self._limiter = limiter
        self._context = context
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand a copy of the socket to the event loop, which makes a transport with TLS; this
        transport must read nothing.
        """
        # uvloop's transports have the interface of asyncio.Transport, but not its base class.
        accepted = cast(asyncio.Transport, transport)
        address = get_remote_addr(accepted)
        try:
            place = self._limiter.enter(self, "" if address is None else address[0])
            if place in (Place.NONE, Place.TOO_MANY):
                self._limiter.refused[self._limiter.no_place(place).code] += 1
                self._limiter.leave(self)
                return
            self._limiter.turn(self, Doing.HANDSHAKE)
            try:
                plain = socket.socket(fileno=os.dup(accepted.get_extra_info("socket").fileno()))
            except OSError:
                # There is no free descriptor.
                self._limiter.leave(self)
                return
            self._task = self._tasks.start(self._shake_hands(plain), "handshake")
        finally:
            accepted.abort()

    def make_place(self) -> None:
        self._end()

    def overdue(self) -> None:
        self._end()

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _shake_hands(self, plain: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        secured = functools.partial(
            self._secured, leave=functools.partial(self._limiter.leave, self)
        )
        try:
            await loop.connect_accepted_socket(secured, plain, ssl=self._context)
        except OSError:
            # The client has left, or has no TLS version in common with this server.
            pass
        finally:
            self._limiter.leave(self)


class _Secured(Connection):
    """A connection whose handshake is done. It takes the place of its `Handshake`."""

    def __init__(self, *arguments: Any, leave: Callable[[], None], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._leave_for_it = leave

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._leave_for_it()
        super().connection_made(transport)
