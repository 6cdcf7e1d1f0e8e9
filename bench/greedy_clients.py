"""`python -m bench.greedy_clients HOST PORT MODEL KIND`: 300 clients, until it is ended.

200 ask for an answer and vanish after three tokens, 50 ask for a long one and read none of it, 50
send a byte of their request a second; each comes again when it is through. With KIND `polite` they
ask for the same, send it at once and read all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Callable, Coroutine
from typing import Final

import uvloop

from bench.load import Address, completion_request

_VANISHING: Final = 200
_SILENT: Final = 50
_DRIPPING: Final = 50
_STORY: Final = "Tell me a story."
_AGAIN_S: Final = 0.5
_SMALL_BYTES: Final = 4096

Client = Callable[[Address, bytes, bool], Coroutine[None, None, None]]


async def _vanish(address: Address, request: bytes, polite: bool) -> None:
    reader, writer = await asyncio.open_connection(*address)
    with contextlib.closing(writer):
        writer.write(request)
        events = 0
        while (polite or events < 3) and (part := await reader.read(65536)):
            events += part.count(b"data: ")
            if b"[DONE]" in part:
                return


async def _stop_reading(address: Address, request: bytes, polite: bool) -> None:
    reader, writer = await asyncio.open_connection(*address, limit=_SMALL_BYTES)
    with contextlib.closing(writer):
        writer.write(request)
        if not polite:
            # asyncio itself reads no further than its limit; the gateway cuts it off.
            await writer.wait_closed()
        while (part := await reader.read(65536)) and b"[DONE]" not in part:
            pass


async def _drip(address: Address, request: bytes, polite: bool) -> None:
    reader, writer = await asyncio.open_connection(*address)
    with contextlib.closing(writer):
        if polite:
            writer.write(request)
        else:
            for byte in request:
                writer.write(bytes([byte]))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        if await reader.read(65536):
                            return
        while (part := await reader.read(65536)) and b"[DONE]" not in part:
            pass


async def _again(client: Client, address: Address, request: bytes, polite: bool) -> None:
    while True:
        with contextlib.suppress(OSError):
            await client(address, request, polite)
        await asyncio.sleep(_AGAIN_S * random.uniform(1.0, 2.0))


async def _crowd(address: Address, model: str, polite: bool) -> None:
    greedy = {"temperature": 0.0}
    short = completion_request(model, _STORY, 64, greedy)
    # Log probabilities fill what the system holds for who doesn't read.
    long = completion_request(model, _STORY, 1024, {**greedy, "logprobs": 5})
    clients: list[tuple[Client, bytes]] = [
        *[(_vanish, short)] * _VANISHING,
        *[(_stop_reading, long)] * _SILENT,
        *[(_drip, short)] * _DRIPPING,
    ]
    await asyncio.gather(*(_again(*each[:1], address, each[1], polite) for each in clients))


def main() -> None:
    host, port, model, kind = sys.argv[1:]
    uvloop.run(_crowd((host, int(port)), model, kind == "polite"))


if __name__ == "__main__":
    main()
