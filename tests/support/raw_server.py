"""A server that sends the bytes it is told to, for answers that no server library would send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from gateway.system.http_client import Server

Handler = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """`heads` are those of the requests, and `connections` counts connections."""

    def __init__(self, handler: Handler) -> None:
        self.heads: list[bytes] = []
        self.connections = 0
        self._handler = handler

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                await self._handler(head, reader, writer)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[tuple[RawServer, Server]]:
    raw = RawServer(handler)
    listening = await asyncio.start_server(raw.serve, "127.0.0.1", 0)
    try:
        yield raw, Server("127.0.0.1", listening.sockets[0].getsockname()[1])
    finally:
        listening.close()


def whole(body: bytes, kind: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (status, kind, len(body)) + body


CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)
