"""A client's connection: uvicorn's protocol with a bound on everything that a client decides."""

from __future__ import annotations

import asyncio
import logging
import urllib.parse
from collections import deque
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.http.wire.access_log import new_request_id, request_id
from gateway.http.wire.connection_limits import (
    BODY_BYTES_PER_S,
    BODY_S,
    HEAD_S,
    ClientTimeouts,
    ConnectionLimiter,
    Doing,
    Place,
    TrackedConnection,
)
from gateway.http.wire.exchange import Exchange, Peer, plain_response
from gateway.system.log_lines import about
from gateway.system.refusal import Refusal

logger = logging.getLogger(__name__)

# The most bytes of one head, of trailers, or of the extension of a chunk. The parser joins the
# pieces of a header again for each piece, which takes quadratic time.
MOST_FRAMING_BYTES: Final = 64 << 10
# The most requests, and their bytes, that a client may send before an earlier answer is complete.
_MOST_AHEAD: Final = 16
_MOST_AHEAD_BYTES: Final = 64 << 10
_PROBES: Final = ("/livez", "/readyz", "/health")
# The pause between two looks whether an answer has been handed to the system.
_WRITTEN_S: Final = 0.01


class _TooMuchAheadError(Exception):
    """Ends the parsing of data."""


class ClientConnection(HttpToolsProtocol):
    """Keeps reading while a request is answered, so that it notices at once when the client leaves.

    A request that can't be parsed is answered here. An error in a body is raised where the
    application reads the body.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limiter: ConnectionLimiter,
        handshake: TrackedConnection | None = None,
    ) -> None:
        """The connection takes the place of its TLS `handshake`."""
        super().__init__(config, server_state, app_state, _loop)
        self.timeouts = ClientTimeouts(self.loop.time())
        self._limiter = limiter
        self._handshake = handshake
        self._place = Place.NONE
        # Requests whose answers are not complete; the first is being served.
        self._exchanges: deque[Exchange] = deque()
        self._in_head = False
        self._in_request = False
        self._framing_bytes = 0
        # What has come of a body, and isn't its exchange's yet.
        self._body = bytearray()
        self._ahead = bytearray()
        # Whether incoming data is dropped.
        self._drops_input = False
        self._peer: Peer

    # From the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._peer = Peer(transport)
        host = "" if self.client is None else self.client[0]
        self._place = self._limiter.add(self, host, self._handshake)
        self._handshake = None
        if self._place in (Place.NONE, Place.TOO_MANY):
            # Refuse at once, since descriptors are few.
            self._drops_input = True
            refusal = self._limiter.no_place(self._place)
            self._limiter.refused[refusal.code] += 1
            transport.write(plain_response(refusal, new_request_id()))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for place, exchange in enumerate(self._exchanges):
            exchange.lose_client()
            if place:
                exchange.share.release()
        self._peer.close()
        self._ahead.clear()
        self._limiter.remove(self)

    def data_received(self, data: bytes) -> None:
        if not self._drops_input:
            if self._serving:
                self._buffer(data)
            else:
                self._feed(data)
            self._turn()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Returns whether the connection stays open for writing."""
        if not self.transport.can_write_eof() or (self._drops_input and not self._exchanges):
            return False
        if not self._exchanges:
            if self._in_head:
                self._answer_here(_invalid("it ended in its head"))
            return self._in_head
        if not self._exchanges[0].whole:
            self._fail(_invalid("its body ended too early"))
        self._close_after_these()
        self._peer.watch(self._served)
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        self.timeouts.blocked(self.loop.time())

    def resume_writing(self) -> None:
        super().resume_writing()
        self.timeouts.unblocked()

    # From the limiter

    def make_place(self) -> None:
        if self.timeouts.doing is Doing.IDLE:
            self._close_when_read()
        else:
            self.transport.abort()

    def overdue(self) -> None:
        doing = self.timeouts.doing
        if doing is Doing.HEAD and self._in_head:
            self._answer_here(
                Refusal("request_timeout", f"The head did not come within {HEAD_S:g} s.")
            )
        elif doing is Doing.BODY and not self._exchanges[0].response_started:
            self._fail(
                Refusal(
                    "request_timeout",
                    f"The body did not come within {BODY_S:g} s and one more second for each "
                    f"{BODY_BYTES_PER_S >> 10} KiB.",
                )
            )
            self._close_after_these()
            # The application reads the failure and answers. If it doesn't, the deadline for leaving
            # ends the connection.
            self._limiter.turn(self, Doing.LEAVING)
        elif doing in (Doing.IDLE, Doing.HEAD):
            self._close_when_read()
        else:
            self._peer.reset()

    def offer(self) -> None:
        """Give an idle connection to the next gateway. It is idle if no part of a request has come
        and no answer is being sent. An encrypted connection can't be given away.
        """
        next_gateway = self._limiter.next_gateway
        if (
            next_gateway is None
            or self._drops_input
            or self.transport.is_closing()
            or self._peer.encrypted
        ):
            return
        if self._exchanges or self._in_request or self._ahead or self._place is not Place.FULL:
            return
        if self.transport.get_write_buffer_size():
            self.loop.call_later(_WRITTEN_S, self.offer)
            return
        self.transport.pause_reading()
        self._drops_input = True
        next_gateway(self._peer.duplicate())
        # This closes this process's descriptor, not the connection.
        self.transport.abort()

    # From the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._in_request = True

    def on_header(self, name: bytes, value: bytes) -> None:
        # The parser reports trailers here too, after the head.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._upgrades:
            return
        self._framing_bytes = 0
        self._in_head = False
        if len(self._exchanges) >= _MOST_AHEAD:
            raise _TooMuchAheadError
        version = self.parser.get_http_version()
        self.scope["method"] = self.parser.get_method().decode("ascii")
        self.scope["http_version"] = version
        url = httptools.parse_url(self.url)
        path = urllib.parse.unquote(url.path.decode("ascii"))
        self.scope["path"] = self.root_path + path
        self.scope["raw_path"] = self.root_path.encode("ascii") + url.path
        self.scope["query_string"] = url.query or b""
        if self._place is Place.PROBE and path not in _PROBES:
            self._answer_here(self._limiter.full(), request_id(self.headers))
            return
        exchange = Exchange(
            self._limiter.bodies,
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue and version != "1.0",
            keep_alive=(
                version != "1.0"
                and self._place is Place.FULL
                and self.parser.should_keep_alive()
                and not (self._limiter.next_gateway is not None and self._peer.encrypted)
            ),
            on_response=self.on_response_complete,
        )
        self.cycle = exchange
        self._exchanges.append(exchange)
        if len(self._exchanges) == 1:
            self._start()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def _give_body(self) -> None:
        body, self._body = self._body, bytearray()
        # Framing counts beyond as much content: a client may send a chunk for each byte.
        self._framing_bytes = max(0, self._framing_bytes - 2 * len(body))
        exchange = self._receiving
        if exchange is None or not body:
            return
        self.timeouts.received(len(body))
        try:
            exchange.share.reserve(len(body))
        except Refusal as refusal:
            exchange.fail(refusal)
            return
        exchange.body += body
        # The body of a request that waits for an earlier answer is small: see `_buffer`.
        if exchange is self._exchanges[0] and len(exchange.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        exchange.message_event.set()

    def on_message_complete(self) -> None:
        if self._upgrades:
            return
        self._framing_bytes = 0
        self._give_body()
        self._in_request = False
        if (exchange := self._receiving) is not None:
            exchange.more_body = False
            exchange.message_event.set()

    # From the application

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self._exchanges.popleft()
        if self.transport.is_closing():
            self._limiter.turn(self, Doing.LEAVING)
            return
        self.flow.resume_reading()
        if self._exchanges:
            self._start()
        if self._ahead and not self._serving:
            ahead = bytes(self._ahead)
            self._ahead.clear()
            self._feed(ahead)
        self._turn()
        if self._limiter.next_gateway is not None:
            self.offer()

    # Inside

    @property
    def _serving(self) -> bool:
        """Whether the first request has come as a whole, and its answer is not complete."""
        return bool(self._exchanges) and self._exchanges[0].whole

    def _served(self) -> Exchange | None:
        """The request that is being answered, or will be answered next. None: there is none."""
        if not self._exchanges or self.transport.is_closing():
            return None
        return self._exchanges[0]

    @property
    def _receiving(self) -> Exchange | None:
        """The request whose body is coming. None: no body is coming, or its request was answered or
        has failed, so the body is dropped.
        """
        if not self._exchanges or self._exchanges[-1] is not self.cycle:
            return None
        exchange = self._exchanges[-1]
        return None if exchange.whole or exchange.failure is not None else exchange

    def _turn(self) -> None:
        """Tell the limiter what the client is doing now."""
        if self.timeouts.doing is Doing.LEAVING:
            return
        if self._exchanges:
            first = self._exchanges[0]
            served = self._serving or first.failure
            doing = Doing.SERVED if served else Doing.BODY
        else:
            doing = Doing.HEAD if self._in_request else Doing.IDLE
        self._limiter.turn(self, doing)

    def _start(self) -> None:
        self._start_asgi_task(self._exchanges[0], self.app)

    def _feed(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self._drops_input:
            if self._serving:
                self._buffer(rest)
                return
            part = rest[: MOST_FRAMING_BYTES - self._framing_bytes]
            self._framing_bytes += len(part)
            try:
                rest = rest[self._parse(part) :]
            except httptools.HttpParserError as error:
                self._not_http(error)
            else:
                self._give_body()
                if self._framing_bytes >= MOST_FRAMING_BYTES:
                    self._too_much_framing()

    def _parse(self, part: memoryview) -> int:
        """Returns how many of the bytes were parsed."""
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._upgrades:
                self._close_after_these()
                return len(part)
            # No other protocol is supported. The parser takes everything behind such a head for the
            # other protocol, so a new one parses the head again without the wish to upgrade.
            version = self.parser.get_http_version().encode("ascii")
            head = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
            head += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self.parser.feed_data(b"\r\n".join([*head, b"", b""]))
            return int(upgrade.args[0])
        return len(part)

    @property
    def _upgrades(self) -> bool:
        """Whether the head asks for another protocol. CONNECT can't be asked without one."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _buffer(self, data: bytes | memoryview) -> None:
        """Hold the data, and parse it when the earlier answers are complete."""
        if len(self._ahead) + len(data) > _MOST_AHEAD_BYTES:
            self._close_after_these()
        else:
            self._ahead += data

    def _not_http(self, error: httptools.HttpParserError) -> None:
        if isinstance(error.__context__, _TooMuchAheadError):
            self._close_after_these()
        else:
            callback = isinstance(error, httptools.HttpParserCallbackError)
            self._refuse(_invalid("its address can't be read" if callback else str(error)))

    def _too_much_framing(self) -> None:
        if self._in_head:
            self._refuse(
                Refusal(
                    "headers_too_large",
                    f"The head of the request is larger than {MOST_FRAMING_BYTES >> 10} KiB, "
                    "the largest that is accepted.",
                )
            )
        else:
            self._refuse(_invalid("its body has more framing than content"))

    def _refuse(self, refusal: Refusal) -> None:
        """Refuse data that is no HTTP. No data after that can be read."""
        if self._exchanges and not self._exchanges[0].whole:
            self._fail(refusal)
        if self._exchanges:
            self._close_after_these()
        else:
            self._answer_here(refusal)

    def _fail(self, refusal: Refusal) -> None:
        """Fail the request whose body is being read: the rest of the body will not come."""
        exchange = self._exchanges[0]
        if exchange.response_started:
            self.transport.abort()
        else:
            exchange.fail(refusal)

    def _close_after_these(self) -> None:
        """Answer the requests that have come, take no more, and close."""
        self._drops_input = True
        self._ahead.clear()
        if self._exchanges:
            self._exchanges[-1].keep_alive = False

    def _answer_here(self, refusal: Refusal, name: str | None = None) -> None:
        """Answer without the application, and close.

        Only the sending side is closed at first: with unread data the system would drop the answer.
        """
        name = name or new_request_id()
        logger.info(
            "Refused: %s", refusal.message, extra=about(request=name, status=refusal.status)
        )
        self._drops_input = True
        self._limiter.refused[refusal.code] += 1
        self.transport.write(plain_response(refusal, name))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            # TLS has no half-closed connections. It reads the rest of the data before it closes.
            self.transport.close()
        self._limiter.turn(self, Doing.LEAVING)

    def _close_when_read(self) -> None:
        self._drops_input = True
        self._limiter.turn(self, Doing.LEAVING)
        self.transport.close()


def _invalid(reason: str) -> Refusal:
    return Refusal("invalid_request_error", f"The request is not valid HTTP: {reason}.")
