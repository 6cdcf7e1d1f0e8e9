"""A connection on a real socket, before an application that says what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import socket
import sys

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gateway.http.wire.connection import Connection
from gateway.http.wire.connection_limits import ConnectionLimiter
from gateway.http.wire.exchange import bound_unsent

UPGRADES = (
    # As Java's HttpClient and `curl --http2` send it.
    b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAA\r\nUpgrade: h2c\r\n",
    b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n",
    b"X-Before: 1\r\nconnection: upgrade\r\nupgrade: TLS/1.3, HTTP/2.0\r\nX-Behind: 1\r\n",
)
LAST = b"GET /last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    body = (await request.body()).decode()
    said = {"asked": f"{request.method} {request.url.path} {body}", **request.headers}
    await JSONResponse(said)(scope, receive, send)


def _answers(sent: bytes, piece_bytes: int) -> str:
    """Everything that is answered to `sent`, which comes in pieces."""

    async def ask() -> bytes:
        loop = asyncio.get_running_loop()
        config = uvicorn.Config(_echo, ws="none", lifespan="off", log_config=None)
        config.load()
        limiter = ConnectionLimiter(lambda: 10, lambda: 10)
        protocol = functools.partial(Connection, config, ServerState(), {}, limiter=limiter)
        async with await loop.create_server(protocol, "127.0.0.1") as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            for begin in range(0, len(sent), piece_bytes):
                writer.write(sent[begin : begin + piece_bytes])
                await asyncio.sleep(0)
            received = await reader.read()
            writer.close()
            return received

    return asyncio.run(ask()).decode()


def test_an_upgrade_is_ignored_and_the_body_behind_it_is_read() -> None:
    bodies = (
        b"Content-Length: 4\r\n\r\nbody",
        b"Transfer-Encoding: chunked\r\n\r\n1\r\nb\r\n3;a=b\r\nody\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX-Sum: 1\r\n\r\n",
    )
    sent = b""
    for upgrade in UPGRADES:
        for body in bodies:
            sent += b"POST /with HTTP/1.1\r\nHost: localhost\r\n" + upgrade + body
        sent += b"GET /without HTTP/1.1\r\nHost: localhost\r\n" + upgrade + b"\r\n"
    for piece_bytes in (7, 100, len(sent)):
        received = _answers(sent + LAST, piece_bytes)
        asked = re.findall(r'"asked":"([^"]*)"', received)
        one = ["POST /with body"] * len(bodies) + ["GET /without "]
        assert asked == one * len(UPGRADES) + ["GET /last "]
        assert received.count("HTTP/1.1 200") == len(asked)
        assert '"upgrade":' not in received
        assert received.count('"x-before":"1"') == received.count('"x-behind":"1"') == len(one)


def test_an_upgrade_that_closes_is_the_last_request() -> None:
    closing = b"Connection: close, Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nok"
    received = _answers(b"POST /a HTTP/1.1\r\nHost: localhost\r\n" + closing + LAST, 100)
    assert re.findall(r'"asked":"([^"]*)"', received) == ["POST /a ok"]


def test_a_tunnel_is_refused() -> None:
    received = _answers(b"CONNECT there:443 HTTP/1.1\r\nHost: there:443\r\n\r\nrest", 100)
    assert received.startswith("HTTP/1.1 400 ")


@pytest.mark.parametrize("platform", [sys.platform, "darwin"])
def test_a_client_that_does_not_read_gets_few_bytes_ahead(platform: str) -> None:
    def taken(bound: bool) -> int:
        """The bytes that the system takes for a client that has room for few."""
        with (
            socket.create_server(("127.0.0.1", 0)) as listening,
            socket.socket() as client,
        ):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            client.connect(listening.getsockname())
            connected, _ = listening.accept()
            with connected:
                connected.setblocking(False)
                if bound:
                    bound_unsent(connected, platform)
                sent = 0
                with contextlib.suppress(BlockingIOError):
                    while True:
                        sent += connected.send(bytes(1 << 14))
                return sent

    assert taken(True) < 600_000
    assert taken(False) > 600_000 or sys.platform == "darwin"
