"""The end of a gateway that was replaced. The gateway gives its idle connections to the successor
and serves its last clients, and then its process ends. If launchd, systemd or a terminal watches
the process, it goes on as the stand-in instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from types import FrameType
from typing import Final, NoReturn

from gateway.http.app import Parts
from gateway.requests import refusals
from gateway.requests.request import REMINDER_S
from gateway.server.upgrade.messages import Finished, FromSuccessor, Released
from gateway.server.upgrade.stand_in import SENT_ON, become_stand_in
from gateway.server.upgrade.successor import SuccessorProcess
from gateway.server.upgrade.successor_relay import Relay
from gateway.server.upgrade.takeover import Takeover
from gateway.server.uvicorn_server import UvicornServer
from gateway.system.tasks import Tasks

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.1
# Seconds for connections that wait for no answer of a model, such as followers of logs.
_LINGER_S: Final = 30.0
_FINISH_S: Final = 30.0


class Departure:
    """The end of this gateway, once its successor serves. `python` is the successor's interpreter.
    If this process stands in for the successor, `stands_in` is the socket over which the process
    sends signals on; otherwise None.
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

    async def give_up_work(self) -> None:
        """Give up everything but the clients that are connected here."""
        messages = self._successor.messages
        self._server.afterwards = self.forward_signal
        for signal_number in SENT_ON:
            signal.signal(signal_number, self.forward_signal)
        self._relay.open(messages.send)
        self._tasks.start(self._listen(), "successor")
        self._server.stop_listening()
        await self._parts.recorder.stop()
        for incarnation, begun in await self._parts.fleet.release():
            messages.send(Released(incarnation, begun))
        self._parts.mailbox.give_up_waiting()
        self._parts.limiter.next_gateway = self._give_connection
        self._server.offer_connections()
        logger.info("Another gateway serves (pid %d)", self._successor.pid)

    def forward_signal(self, number: int, _frame: FrameType | None) -> None:
        """Send a signal on to the gateway that serves, if this process stands in for that gateway.
        Otherwise SIGTERM ends the service of the last clients.
        """
        if self._stands_in is not None:
            with contextlib.suppress(OSError):
                self._stands_in.send(bytes([number]))
        elif number == signal.SIGTERM:
            # The loop may be closed by now.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._lost.set)

    async def serve_last_clients(self) -> None:
        """Serve the clients that are connected here, and the gateways before this one. Returns when
        no answer is left to give and all connections are closed, or after `_LINGER_S` without an
        answer to give. Also returns when the successor has ended, or SIGTERM ends the service.
        """
        parts = self._parts
        await parts.pulls.close()
        await parts.checks.close()
        await parts.last_used.close(list)
        await parts.fleet.end_spares()
        self._successor.messages.send(Released(0, b""))
        idle_since = self._loop.time()
        while not self._lost.is_set():
            now = self._loop.time()
            self._relay.remind(now, REMINDER_S)
            earlier = self._takeover is not None and not self._takeover.gone.is_set()
            if earlier or len(self._relay) or parts.mailbox.maker.making:
                idle_since = now
            elif not self._server.server_state.connections or now - idle_since >= _LINGER_S:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._lost.wait()

    async def finish(self) -> None:
        """Tell the successor that no client is left here, and close the channels."""
        successor = self._successor
        successor.messages.send(Finished())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FINISH_S):
                await successor.descriptors.sent()
                await successor.messages.sent()
        successor.close()
        await self._tasks.cancel_all()

    def end_process(self) -> NoReturn:
        """End this process, or turn it into the program that stands in for the next gateway."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self._stands_in is None:
            os._exit(0)
        become_stand_in(self._python, self._stands_in)

    def _give_connection(self, descriptor: int) -> None:
        self._successor.descriptors.send(b"conn", 0, descriptor)

    async def _listen(self) -> None:
        message: FromSuccessor | None
        while (message := await self._successor.messages.receive()) is not None:
            self._relay.receive(message)
        # The successor has ended and refused its own requests. Refuse the requests here, too.
        self._relay.refuse_all(refusals.shutting_down())
        self._lost.set()
