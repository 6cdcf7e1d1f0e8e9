"""Uvicorn's server, whose signals are somebody else's."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from types import FrameType
from typing import Final

import uvicorn

_START_S: Final = 10.0
# What uvicorn takes on every system that we run on.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Server(uvicorn.Server):
    """Uvicorn, but signals start our own end: workers are stopped before the listener is. Once that
    has begun to be over, they are ignored for good, so that none becomes the exit status.
    """

    def __init__(self, config: uvicorn.Config, signals: asyncio.Queue[int]) -> None:
        super().__init__(config)
        self._signals = signals
        self._loop = asyncio.get_running_loop()
        self._started_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started_up.set()

    async def until_started(self, serving: asyncio.Task[None]) -> None:
        """From then on signals are ours: nobody who has read the address ends the process by one.

        Raises what `serving` raised, if it ended instead.
        """
        started = asyncio.create_task(self._started_up.wait())
        await asyncio.wait(
            {started, serving}, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED
        )
        started.cancel()
        if serving.done():
            await serving

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in _SIGNALS:
            signal.signal(number, self.handle_exit)
        try:
            yield
        finally:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._signals.put_nowait, sig)
