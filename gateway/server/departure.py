"""What is left of a gateway that was replaced: its last clients, and the process that launchd,
systemd or a terminal watches, which stands in for the gateway that serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from gateway.http.app import Parts
from gateway.models.fleet import REMINDER_S
from gateway.requests import refusals
from gateway.server.gateway_channel import Finished, FromSuccessor, Released
from gateway.server.handover import SuccessorProcess
from gateway.server.relay import Relay
from gateway.server.takeover import Takeover
from gateway.server.uvicorn_server import UvicornServer
from gateway.system.tasks import Tasks

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.1
# Of who isn't served but connected: followers of logs.
_LINGER_S: Final = 30.0
_FAREWELL_S: Final = 30.0
_HANDED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
# As it is at the start of this gateway: its file may be gone by the time.
_STAND_IN: Final = Path(__file__).with_name("stand_in.py").read_text("utf-8")


class Departure:
    """From the moment on when another gateway serves. `python` is that one's interpreter; what
    comes to this process is handed on by `stands_in`, if it stands in for that one.
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
        """`takeover` is about the gateway before this one."""
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
        """Let go of everything but clients."""
        frames = self._successor.frames
        self._server.afterwards = self.hand_on
        for number in _HANDED_ON:
            signal.signal(number, self.hand_on)
        self._relay.open(frames.send)
        self._tasks.start(self._listen(), "successor")
        self._server.stop_listening()
        for incarnation, begun in await self._parts.fleet.leave():
            frames.send(Released(incarnation, begun))
        self._parts.mailbox.leave()
        self._parts.limiter.next_gateway = self._give_connection
        self._server.offer_connections()
        logger.info("Another gateway serves (pid %d)", self._successor.pid)

    def hand_on(self, number: int, _frame: FrameType | None) -> None:
        """A signal that comes to this process is meant for the one that serves. Who only serves the
        last clients ends by SIGTERM.
        """
        if self._stands_in is not None:
            with contextlib.suppress(OSError):
                self._stands_in.send(bytes([number]))
        elif number == signal.SIGTERM:
            # It may be about to end anyway.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._lost.set)

    async def see_out(self) -> None:
        """Serve those who are connected here, and the gateways before this one; returns when nobody
        is left, or the successor is gone.
        """
        parts = self._parts
        await parts.pulls.close()
        await parts.last_used.close(list)
        await parts.fleet.end_spares()
        self._successor.frames.send(Released(0, b""))
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
        """Nobody is served here any more."""
        successor = self._successor
        successor.frames.send(Finished())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await successor.passage.sent()
                await successor.frames.sent()
        successor.close()
        await self._tasks.cancel_all()

    def become(self) -> NoReturn:
        """What this process is from now on: nothing, or who stands in for the next gateway."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self._stands_in is None:
            os._exit(0)
        descriptor = self._stands_in.fileno()
        os.set_inheritable(descriptor, True)
        # What comes from here on waits until it is there.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)
        # A process of the same number and parent, with next to nothing in it.
        command = [self._python, "-I", "-S", "-c", _STAND_IN, str(descriptor)]
        os.execv(self._python, command)  # noqa: S606 - there is no shell to want

    def _give_connection(self, descriptor: int) -> None:
        self._successor.passage.send(b"conn", 0, descriptor)

    async def _listen(self) -> None:
        message: FromSuccessor | None
        while (message := await self._successor.frames.receive()) is not None:
            self._relay.receive(message)
        # It has ended, and said so to its clients: these are among them.
        self._relay.refuse_all(refusals.shutting_down())
        self._lost.set()


# A terminal's signal reaches the whole group, and comes once more from who stands in.
_SAME_S: Final = 1.0


class StandInChannel:
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
