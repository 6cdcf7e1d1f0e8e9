"""The end of a gateway that was replaced. The gateway serves its last clients, and then its process
ends. If launchd, systemd or a terminal watches the process, it goes on as a small program instead,
which stands in for the gateway that serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final, NoReturn

from gateway.http.app import Parts
from gateway.requests import refusals
from gateway.requests.request import REMINDER_S
from gateway.server.gateway_channel import Finished, FromSuccessor, Released
from gateway.server.handover import SuccessorProcess
from gateway.server.relay import Relay
from gateway.server.takeover import Takeover
from gateway.server.uvicorn_server import UvicornServer
from gateway.system.tasks import Tasks

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.1
# Seconds for connections that wait for no answer of a model, such as followers of logs.
_LINGER_S: Final = 30.0
_FAREWELL_S: Final = 30.0
_HANDED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)


def _stand_in(descriptor: int) -> int:
    """The program of the process that stands in for the gateway that serves. The program hands
    signals on to that gateway over a socket. It ends when that gateway ends: with the last status
    that the gateway has sent, or with 1 if the gateway has sent no status. The program runs alone,
    in an interpreter without this package.
    """
    connected = socket.socket(fileno=descriptor)

    def hand_on(number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):
            connected.send(bytes([number]))

    # Workers that the replaced gateway had started are still children of this process. It does not
    # wait for them, so the kernel must reap them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(each, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, range(1, 32))
    status = 1
    while True:
        try:
            told = connected.recv(1)
        except OSError:
            return status
        if not told:
            return status
        status = told[0]


# The text of `_stand_in` is read at the start of this gateway: an upgrade may replace this file.
STAND_IN: Final = f"""
import contextlib, os, signal, socket, sys
{inspect.getsource(_stand_in)}
os.chdir("/")
sys.exit({_stand_in.__name__}(int(sys.argv[1])))
"""


class Departure:
    """The end of this gateway, once its successor serves. `python` is the successor's interpreter.
    If this process stands in for the successor, `stands_in` is the socket over which the process
    hands signals on; otherwise None.
    """

    def __init__(
        self,
        parts: Parts,
        server: UvicornServer,
        relay: Relay,
        successor: SuccessorProcess,
        takeover: Takeover | None,
        python: str,
        stands_in: socket.socket | None,
    ) -> None:
        """`takeover` is the connection to the gateway before this one; None: there was none."""
        self._parts = parts
        self._server = server
        self._relay = relay
        self._successor = successor
        self._takeover = takeover
        self._python = python
        self._stands_in = stands_in
        self._tasks = Tasks("departure")
        self._lost = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def begin(self) -> None:
        """Give up everything but the clients that are connected here."""
        messages = self._successor.messages
        self._server.afterwards = self.hand_on
        for number in _HANDED_ON:
            signal.signal(number, self.hand_on)
        self._relay.open(messages.send)
        self._tasks.start(self._listen(), "successor")
        self._server.stop_listening()
        await self._parts.recorder.leave()
        for incarnation, begun in await self._parts.fleet.release():
            messages.send(Released(incarnation, begun))
        self._parts.mailbox.leave()
        self._parts.limiter.next_gateway = self._give_connection
        self._server.offer_connections()
        logger.info("Another gateway serves (pid %d)", self._successor.pid)

    def hand_on(self, number: int, _frame: FrameType | None) -> None:
        """Hand a signal on to the gateway that serves, if this process stands in for that gateway.
        Otherwise SIGTERM ends the service of the last clients.
        """
        if self._stands_in is not None:
            with contextlib.suppress(OSError):
                self._stands_in.send(bytes([number]))
        elif number == signal.SIGTERM:
            # The loop may be closed by now.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._lost.set)

    async def see_out(self) -> None:
        """Serve the clients that are connected here, and the gateways before this one. Returns when
        no answer is left to give and all connections are closed, or after `_LINGER_S` without an
        answer to give. Also returns when the successor has ended, or SIGTERM ends the service.
        """
        parts = self._parts
        await parts.pulls.close()
        await parts.last_used.close(list)
        await parts.fleet.end_spares()
        self._successor.messages.send(Released(0, b""))
        idle_since = self._loop.time()
        while not self._lost.is_set():
            now = self._loop.time()
            self._relay.remind(now, REMINDER_S)
            before = self._takeover is not None and not self._takeover.gone.is_set()
            if before or len(self._relay) or parts.mailbox.maker.making:
                idle_since = now
            elif not self._server.server_state.connections or now - idle_since >= _LINGER_S:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._lost.wait()

    async def say_farewell(self) -> None:
        """Tell the successor that no client is left here, and close the channels."""
        successor = self._successor
        successor.messages.send(Finished())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await successor.descriptors.sent()
                await successor.messages.sent()
        successor.close()
        await self._tasks.cancel_all()

    def become(self) -> NoReturn:
        """End this process, or turn it into the program that stands in for the next gateway."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self._stands_in is None:
            os._exit(0)
        descriptor = self._stands_in.fileno()
        os.set_inheritable(descriptor, True)
        # Signals that come from now on wait until the new program handles them.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)
        # The process keeps its pid and its parent, and needs very little memory.
        command = [self._python, "-I", "-S", "-c", STAND_IN, str(descriptor)]
        os.execv(self._python, command)  # noqa: S606 - no shell is needed

    def _give_connection(self, descriptor: int) -> None:
        self._successor.descriptors.send(b"conn", 0, descriptor)

    async def _listen(self) -> None:
        message: FromSuccessor | None
        while (message := await self._successor.messages.receive()) is not None:
            self._relay.receive(message)
        # The successor has ended and refused its own requests. Refuse the requests here, too.
        self._relay.refuse_all(refusals.shutting_down())
        self._lost.set()


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
        self._came: dict[int, float] = {}
        self._handed: dict[int, float] = {}

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
        """Note a signal that this process got directly. False: the stand-in has just sent the same
        signal.
        """
        now = asyncio.get_running_loop().time()
        self._came[number] = now
        return now - self._handed.get(number, -_SAME_S) >= _SAME_S

    def end(self, status: int) -> None:
        """Tell the stand-in that this gateway ends with this status."""
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
