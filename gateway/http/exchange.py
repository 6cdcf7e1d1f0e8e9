"""One request and its response on a connection."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, Protocol

from starlette.types import Scope
from uvicorn._types import ASGI3Application, ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.http.errors import error_response
from gateway.http.record import HEADER
from gateway.requests.share import SHARE, ByteBudget, Share
from gateway.system.refusal import Refusal

# In a scope's "state".
DIRECT_WRITER: Final = "direct_writer"


class DirectWriter(Protocol):
    """Writes more of a body whose response has begun, past the layers of the application: awaiting
    each of them for every token would cost more than all else that is done for it.
    """

    @property
    def writable(self) -> bool:
        """The client is there, and takes what is written. Otherwise the long way waits for it."""

    def write(self, body: bytes) -> None:
        """Once it is writable."""


def direct_writer_of(scope: Scope) -> DirectWriter | None:
    """That of its response, where the server has one."""
    writer: DirectWriter | None = scope.get("state", {}).get(DIRECT_WRITER)
    return writer


# What the flow control of a connection lets in before anybody reads; the bound on connections
# bounds this, so that small requests are served whatever large ones take.
_FREE_BYTES: Final = 64 << 10
# What changes nothing for who reads a stream: a comment, or a space before a line of JSON.
_SIGNS_OF_LIFE: Final = {b"text/event-stream": b":\n\n", b"application/x-ndjson": b" "}


class Exchange(RequestResponseCycle):
    """Has its share of the bound on all bodies until it is over, as its prompt stays that long."""

    def __init__(self, bodies: ByteBudget, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self.failure: Refusal | None = None
        self.share = Share(bodies, _FREE_BYTES)
        self._sign_of_life = b""
        # HTTP/1.0 knows no chunks: there the end of the connection is the end of the body.
        self._closes = self.scope["http_version"] == "1.0"
        if self._closes:
            self.chunked_encoding = False

    @property
    def whole(self) -> bool:
        """The request has come to its end."""
        return not self.more_body

    def fail(self, refusal: Refusal) -> None:
        """Whoever reads the body gets this instead of the rest."""
        self.failure = refusal
        self.body = bytearray()
        self.message_event.set()

    def lose_client(self) -> None:
        if not self.response_complete:
            self.disconnected = True
        self.message_event.set()

    def nudge(self) -> None:
        """Write what changes nothing for who reads it, if there is such a thing at this point."""
        if self.response_started:
            if sign := self._sign_of_life:
                chunked = b"%x\r\n%s\r\n" % (len(sign), sign)
                self.transport.write(sign if self._closes else chunked)
        elif not self._closes:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def run_asgi(self, app: ASGI3Application) -> None:
        self.scope["state"][DIRECT_WRITER] = self
        self.scope["state"][SHARE] = self.share
        try:
            await super().run_asgi(app)
        finally:
            # Nobody looks for cycles for a long time.
            del self.scope["state"][DIRECT_WRITER]
            self.share.release()

    @property
    def writable(self) -> bool:
        """As `DirectWriter` has it. Without chunks the long way counts the bytes."""
        return (
            self.response_started
            and self.chunked_encoding is True
            and not (self.response_complete or self.disconnected or self.flow.write_paused)
        )

    def write(self, body: bytes) -> None:
        # An empty chunk would be the last one.
        if body:
            self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))

    async def receive(self) -> ASGIReceiveEvent:
        """Raises: Refusal if the body doesn't come as it should."""
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
    """A whole response, after which the connection closes."""
    response = error_response(refusal)
    headers = [
        *response.raw_headers,
        (HEADER, request_id.encode("ascii")),
        (b"connection", b"close"),
    ]
    status = HTTPStatus(refusal.status)
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii")
    lines = b"".join(b"%s: %s\r\n" % header for header in headers)
    return head + lines + b"\r\n" + bytes(response.body)


# A client that has closed its side may have gone, or wait for its answer: both look the same
# until something is written, and then until the other side's system had time to object. Answers
# that haven't begun are often there sooner than that is worth asking.
_ASKED_S: Final = 1.0
_HEARD_S: Final = 0.05
# What the system takes of an answer ahead of what it has sent. It would be megabytes otherwise, for
# each client that doesn't read, before anybody noticed that it doesn't.
_UNSENT: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_UNSENT_BYTES: Final = 128 << 10
# For SO_LINGER: on, for no time.
_AT_ONCE: Final = struct.pack("ii", 1, 0)


class Peer:
    """Whoever is connected by `transport`."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._look: asyncio.TimerHandle | None = None
        if _UNSENT is not None:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.IPPROTO_TCP, _UNSENT, _UNSENT_BYTES)

    @property
    def encrypted(self) -> bool:
        return self._transport.get_extra_info("sslcontext") is not None

    def duplicate(self) -> int:
        """A descriptor of the connection that outlives this one."""
        return os.dup(self._socket.fileno())

    def reset(self) -> None:
        """End it, and have the system forget what it holds for it: it would keep that for minutes
        otherwise, for a client that doesn't take it.
        """
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self._transport.abort()

    def watch(self, served: Callable[[], Exchange | None]) -> None:
        """It has closed its side: end the connection once it is known that nobody is there. What is
        being `served` at the time may be nothing any more.
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
        """Write something, if that changes nothing for a client that is still there."""
        if (present := served()) is not None:
            present.nudge()
            self._look = self._loop.call_later(_HEARD_S, self._hear, served)

    def _hear(self, served: Callable[[], Exchange | None]) -> None:
        """What the other side's system says of it."""
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
