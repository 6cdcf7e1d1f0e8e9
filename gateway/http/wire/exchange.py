"""A request and its response on a connection."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, Protocol

from starlette.types import Scope
from uvicorn._types import ASGI3Application, ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.http.wire.access_log import REQUEST_ID
from gateway.http.wire.errors import error_response
from gateway.requests.share import SHARE, ByteBudget, Share
from gateway.system.refusal import Refusal

# The key of the writer in the "state" of a scope.
DIRECT_WRITER: Final = "direct_writer"


class DirectWriter(Protocol):
    """Writes more of a body whose response has begun, without the middlewares of the application:
    awaiting each of them for every token would cost more than all other work for the token.
    """

    @property
    def writable(self) -> bool:
        """Whether the client is connected and reads. If not, use `send`, which waits."""

    def write(self, body: bytes) -> None:
        """Write now. Call this only while `writable`."""

    def cut(self) -> None:
        """Break the response off, so that the client knows that it isn't whole."""


def direct_writer_of(scope: Scope) -> DirectWriter | None:
    """The writer of the request's response. None: the server has none."""
    writer: DirectWriter | None = scope.get("state", {}).get(DIRECT_WRITER)
    return writer


# The bytes of a body that don't count: flow control lets them in before the application reads. The
# bound on connections bounds their sum. So small requests are served even if large ones fill the
# budget of all bodies.
_FREE_BYTES: Final = 64 << 10
# Bytes that clients of a stream ignore: a comment, or a space before a line of JSON.
_SIGNS_OF_LIFE: Final = {b"text/event-stream": b":\n\n", b"application/x-ndjson": b" "}


class Exchange(RequestResponseCycle):
    """A request and its response. The exchange holds its share of the bound on all bodies until the
    response is complete, since the prompt stays in memory until then.
    """

    def __init__(self, bodies: ByteBudget, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self.failure: Refusal | None = None
        self.share = Share(bodies, _FREE_BYTES)
        self._sign_of_life = b""
        # HTTP/1.0 has no chunked encoding: there the end of the connection ends the body.
        self._closes = self.scope["http_version"] == "1.0"
        if self._closes:
            self.chunked_encoding = False

    @property
    def whole(self) -> bool:
        """Whether the whole request has come."""
        return not self.more_body

    def fail(self, refusal: Refusal) -> None:
        """Raise this refusal where the application reads the rest of the body."""
        self.failure = refusal
        self.body = bytearray()
        self.message_event.set()

    def lose_client(self) -> None:
        if not self.response_complete:
            self.disconnected = True
        self.message_event.set()

    def nudge(self) -> bool:
        """Write something that clients ignore. Returns whether HTTP has such a thing at this point:
        within a body of a known length it has none.
        """
        sign = self._sign_of_life
        if self._closes:
            nudge = sign if self.response_started else b""
        elif not self.response_started:
            nudge = b"HTTP/1.1 100 Continue\r\n\r\n"
        elif self.chunked_encoding:
            # The size of the next chunk may begin with a zero.
            nudge = b"%x\r\n%s\r\n" % (len(sign), sign) if sign else b"0"
        else:
            nudge = b""
        self.transport.write(nudge)
        return bool(nudge)

    async def run_asgi(self, app: ASGI3Application) -> None:
        self.scope["state"][DIRECT_WRITER] = self
        self.scope["state"][SHARE] = self.share
        try:
            await super().run_asgi(app)
        finally:
            # Break the reference cycle: the garbage collector runs rarely.
            del self.scope["state"][DIRECT_WRITER]
            self.share.release()

    @property
    def writable(self) -> bool:
        """As in `DirectWriter`. Without chunked encoding `send` has to count the bytes."""
        return (
            self.response_started
            and self.chunked_encoding is True
            and not (self.response_complete or self.disconnected or self.flow.write_paused)
        )

    def write(self, body: bytes) -> None:
        # An empty chunk would end the body.
        if body:
            self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))

    def cut(self) -> None:
        self.disconnected = True
        self.transport.abort()

    async def receive(self) -> ASGIReceiveEvent:
        """Raises: Refusal: the body ended early, is too slow, or is no HTTP."""
        message = await super().receive()
        if self.failure is not None and message["type"] == "http.request":
            raise self.failure
        return message

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            kind = dict(message.get("headers", ())).get(b"content-type", b"")
            self._sign_of_life = _SIGNS_OF_LIFE.get(kind.partition(b";")[0], b"")
        elif self._closes and message["type"] == "http.response.body":
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


def plain_response(refusal: Refusal, request_id: str) -> bytes:
    """A whole response as bytes, for a connection that closes after it."""
    response = error_response(refusal)
    headers = [
        *response.raw_headers,
        (REQUEST_ID, request_id.encode("ascii")),
        (b"connection", b"close"),
    ]
    status = HTTPStatus(refusal.status)
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii")
    lines = b"".join(b"%s: %s\r\n" % header for header in headers)
    return head + lines + b"\r\n" + bytes(response.body)


# A client that has closed its sending side may be gone or may wait for its answer. To find out,
# write something and give the other system time to reset the connection. Wait before that: most
# answers begin sooner.
_ASKED_S: Final = 1.0
_HEARD_S: Final = 0.05
# Few clients close their sending side and then read an answer that pauses for so long.
_PATIENCE_S: Final = 30.0
# How much of an answer the system may buffer. The default is megabytes for each client that doesn't
# read.
_UNSENT_BYTES: Final = 128 << 10
# For SO_LINGER: on, with a time of 0.
_AT_ONCE: Final = struct.pack("ii", 1, 0)


def bound_unsent(connected: socket.socket, platform: str = sys.platform) -> None:
    """Bound the bytes that the system takes and hasn't sent. macOS's TCP_NOTSENT_LOWAT only says
    when to write more: there the whole buffer is bounded, with the bytes that are under way.

    Raises: OSError.
    """
    if platform == "darwin":
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNSENT_BYTES)
    else:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)


class Peer:
    """The client at the other end of `transport`."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._look: asyncio.TimerHandle | None = None
        with contextlib.suppress(OSError):
            bound_unsent(self._socket)

    @property
    def encrypted(self) -> bool:
        return self._transport.get_extra_info("sslcontext") is not None

    def duplicate(self) -> int:
        """A new descriptor of the connection, which outlives the transport."""
        return os.dup(self._socket.fileno())

    def reset(self) -> None:
        """Reset the connection, so that the system drops the data that it holds for a client that
        doesn't read. Otherwise it would keep that data for minutes.
        """
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self._transport.abort()

    def watch(self, served: Callable[[], Exchange | None]) -> None:
        """Call this when the client has closed its sending side: ends the connection if the client
        is gone. `served` returns the exchange that is being served, or None once it has ended.
        """
        present = served()
        if present is not None and present.response_started:
            self._ask(served)
        else:
            self._look = self._loop.call_later(_ASKED_S, self._ask, served)

    def close(self) -> None:
        if self._look is not None:
            self._look.cancel()

    def _ask(self, served: Callable[[], Exchange | None]) -> None:
        """Write bytes that a client ignores. If the client is gone, its system sends a reset."""
        if (present := served()) is not None:
            if present.nudge():
                self._look = self._loop.call_later(_HEARD_S, self._hear, served)
            else:
                self._look = self._loop.call_later(_PATIENCE_S, self._give_up, served)

    def _give_up(self, served: Callable[[], Exchange | None]) -> None:
        """End a connection of which can't be known whether the client still reads."""
        if served() is not None:
            self._transport.abort()

    def _hear(self, served: Callable[[], Exchange | None]) -> None:
        """End the connection if the client's system has answered with a reset."""
        if served() is None:
            return
        if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()
        else:
            self._look = self._loop.call_later(_ASKED_S, self._hear, served)

    @property
    def _socket(self) -> socket.socket:
        connected: socket.socket = self._transport.get_extra_info("socket")
        return connected
