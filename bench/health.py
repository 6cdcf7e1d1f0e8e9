"""How long GET /health takes while the server is under load."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Final

from bench.load import Address
from bench.results import FailedError

_INTERVAL_S: Final = 0.02
_REQUEST: Final = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


class HealthProbe:
    """Asks every 20 ms on one connection.

    A server that closes the connection after each answer, as mlx_lm.server does, is connected to
    again: whoever asks it for its health has to wait for that too, so it counts.
    """

    def __init__(self, address: Address) -> None:
        self.latencies_s: list[float] = []
        self._address = address
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, until: asyncio.Event) -> None:
        """Probe until the event; the last probe is waited for, however long it takes."""
        due = time.perf_counter()
        while not until.is_set():
            began = time.perf_counter()
            await self._ask()
            ended = time.perf_counter()
            self.latencies_s.append(ended - began)
            due = max(due + _INTERVAL_S, ended)
            await asyncio.sleep(due - ended)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def _ask(self) -> None:
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(*self._address)
        self._writer.write(_REQUEST)
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = head.split(b" ", 2)[1]
        if status != b"200":
            raise FailedError(f"GET /health answered {status.decode()} under load.")
        if length := _LENGTH.search(head):
            await self._reader.readexactly(int(length[1]))
        else:
            await self._reader.read()
            self.close()
