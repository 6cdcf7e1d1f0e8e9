"""One request and its response on a connection."""

from __future__ import annotations

from typing import Any, Final

from uvicorn._types import ASGI3Application, ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.http.connection.outlet import OUTLET
from gateway.requests.share import SHARE, ByteBudget, Share
from gateway.system.refusal import Refusal

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
        self.scope["state"][OUTLET] = self
        self.scope["state"][SHARE] = self.share
        try:
            await super().run_asgi(app)
        finally:
            # Nobody looks for cycles for a long time.
            del self.scope["state"][OUTLET]
            self.share.release()

    @property
    def writable(self) -> bool:
        """As `Outlet` has it. Without chunks the long way counts the bytes."""
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
