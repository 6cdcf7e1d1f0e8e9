"""Uvicorn's server with our handling of signals, and the socket that the server listens on."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

import uvicorn

from gateway.http.wire.connection import ClientConnection
from gateway.system.listening import is_listened_at

_START_S: Final = 10.0
# The signals that uvicorn handles on macOS and Linux.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class UvicornServer(uvicorn.Server):
    """Uvicorn's server, but signals go to a queue, since workers are stopped before the listener.
    After the server's end signals are ignored, unless `afterwards` is set, so that no signal
    becomes the exit status.
    """

    def __init__(self, config: uvicorn.Config, signals: asyncio.Queue[int]) -> None:
        super().__init__(config)
        self._signals = signals
        self._loop = asyncio.get_running_loop()
        self._started_up = asyncio.Event()
        # The handler of signals after the server's end.
        self.afterwards: Callable[[int, FrameType | None], None] | signal.Handlers = signal.SIG_IGN
        # Whether to act on a signal. False: the same signal has already come another way.
        self.admits: Callable[[int], bool] = lambda _: True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started_up.set()

    async def until_started(self, serving: asyncio.Task[None]) -> None:
        """Wait until the server has started and its handlers of signals are installed, but at most
        for `_START_S`: only then may the address be published. Raises the exception of `serving`,
        if `serving` ended instead.
        """
        started = asyncio.create_task(self._started_up.wait())
        await asyncio.wait(
            {started, serving}, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED
        )
        started.cancel()
        if serving.done():
            await serving

    def stop_listening(self) -> None:
        """Accept no new connection here. Another process accepts connections at the same socket."""
        for server in self.servers:
            server.close()
        self.servers = []

    def offer_connections(self) -> None:
        """Give the idle connections to the next gateway."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, ClientConnection):
                connection.offer()

    async def serve_connection(self, connected: socket.socket) -> None:
        """Serve a connection that another gateway has accepted."""
        connected.setblocking(False)
        await self._loop.connect_accepted_socket(self._new_protocol, connected)

    def _new_protocol(self) -> asyncio.Protocol:
        # As uvicorn makes the protocols of its own connections.
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=self._loop,
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        for signal_number in _SIGNALS:
            signal.signal(signal_number, self.handle_exit)
        try:
            yield
        finally:
            for signal_number in _SIGNALS:
                signal.signal(signal_number, self.afterwards)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._handle_signal, sig)

    def _handle_signal(self, number: int) -> None:
        if self.admits(number):
            self._signals.put_nowait(number)


_BACKLOG: Final = 2048


class PortTakenError(Exception):
    """The address can't be bound; the text says why."""


def bind(host: str, port: int) -> socket.socket:
    """Listen on an address. The host `::` stands for all addresses, those of IPv4 among them.

    Raises:
        PortTakenError: another process listens there, or the address isn't this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both_families = host == "::" and socket.has_dualstack_ipv6()
    try:
        # create_server would say of an unknown name only the number of the failure.
        socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
        if port and is_listened_at(host, port):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        return socket.create_server(
            (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both_families
        )
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise PortTakenError(
                f"This machine has no address {host}: is Docker running, or the network up? "
                "Choose another with --host."
            ) from error
        if isinstance(error, socket.gaierror):
            raise PortTakenError(
                f"{host} is no address of this machine, so it can't be listened on. Choose another "
                "with --host."
            ) from error
        why = os.strerror(error.errno) if error.errno else error
        raise PortTakenError(
            f"Port {port} on {host} can't be used ({why}). Choose another with --port."
        ) from error
