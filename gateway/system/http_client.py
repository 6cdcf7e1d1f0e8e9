"""Asks an HTTP/1.1 server, over connections that stay open, and reads its answers as they come.

Written for relays: no answer is whole in memory, the server waits for the reader, and a piece can
go to its place without waking a task. httpx takes 0.6 ms for a request that takes 0.1 ms here.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeAlias, cast

import httptools

from gateway.system.notation import without_number
from gateway.system.tls import distrust

Headers: TypeAlias = list[tuple[bytes, bytes]]
# Takes a piece of an answer in place of the reader's task, as waking the task costs more than
# writing the piece. Returns False if it can't take the piece now; then the task gets the piece.
Sink: TypeAlias = Callable[[bytes], bool]

_MOST_HEAD_BYTES: Final = 64 << 10
# Beyond this, reading from the server pauses until the reader has taken what there is.
_MOST_UNREAD_BYTES: Final = 256 << 10
# Servers close a connection that is idle for long; most wait for 5 s or more.
_IDLE_S: Final = 4.0
_MOST_IDLE: Final = 64
_FIRST_REFUSAL: Final = 300
_LAST_STATUS: Final = 599


class Server(NamedTuple):
    """Where a server listens: at a port, or at a Unix socket. With `tls` the port is encrypted."""

    host: str
    port: int = 0
    tls: ssl.SSLContext | None = None
    socket: str | None = None

    @property
    def authority(self) -> bytes:
        """The value of the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode() if self.port else host.encode()


class Question(NamedTuple):
    """A request. `target` is the path with the query. The headers have neither a host nor a length.
    A body of pieces has `length` bytes.
    """

    method: bytes
    target: bytes
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes | bytearray | AsyncIterator[bytes] = b""
    length: int = 0


class AnswerError(Exception):
    """There is no answer, or not the rest of it; the text completes "the server ...". `sent`: the
    server may have seen the request. `late`: it was silent for too long.
    """

    def __init__(self, reason: str, *, sent: bool = True, late: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent
        self.late = late


class HttpClient:
    """Asks one server. `vouch` tells for each new connection whether that server listens."""

    def __init__(
        self,
        server: Server,
        connect_s: float = 5.0,
        vouch: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.server = server
        self._connect_s = connect_s
        self._vouch = vouch
        self._idle: list[_Connection] = []
        self._closed = False

    async def ask(self, question: Question, head_s: float) -> Answer:
        """Send a request. Returns once the head of its answer has come, for which the server has
        `head_s` after the request.

        Raises:
            AnswerError: no head comes.
            Exception: reading the body of the question has failed.
        """
        loop = asyncio.get_running_loop()
        while True:
            idle = self._reuse(loop.time())
            connection = idle or await self._connect()
            try:
                await connection.exchange(question, self.server.authority, head_s)
            except AnswerError as error:
                connection.abort()
                # A server may close an idle connection just as a request comes.
                if idle is None or error.late or not connection.unheard:
                    raise
                if not isinstance(question.body, bytes | bytearray):
                    raise
            except BaseException:
                connection.abort()
                raise
            else:
                return Answer(self, connection)

    def close(self) -> None:
        """Close the connections that are idle, and the others after their answers."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()

    def release(self, connection: _Connection) -> None:
        """Leave a connection open for the next question."""
        connection.idle_since = now = asyncio.get_running_loop().time()
        if self._closed or len(self._idle) >= _MOST_IDLE:
            connection.abort()
            return
        self._idle.append(connection)
        while now - self._idle[0].idle_since > _IDLE_S:
            self._idle.pop(0).abort()

    def _reuse(self, now: float) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and now - connection.idle_since <= _IDLE_S:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        server = self.server
        try:
            async with asyncio.timeout(self._connect_s):
                if server.socket is not None:
                    _, connection = await loop.create_unix_connection(_Connection, server.socket)
                else:
                    _, connection = await loop.create_connection(
                        _Connection, server.host, server.port, ssl=server.tls
                    )
        except TimeoutError:
            reason = f"could not be reached within {self._connect_s:g} s"
            raise AnswerError(reason, sent=False, late=True) from None
        except OSError as error:
            doubt = distrust(error)
            reason = (
                f"can't be reached: {without_number(str(error))}"
                if doubt is None
                else f"shows a certificate that isn't trusted ({doubt})"
            )
            raise AnswerError(reason, sent=False) from error
        if self._vouch is not None and not await self._vouch():
            connection.abort()
            raise AnswerError("doesn't listen at its port, but another program does", sent=False)
        return connection


class Answer:
    """The answer to a question: its head, and its body as it comes. Must be closed. `framed`: its
    body says where it ends; otherwise the body ends with the connection, even one that breaks.
    """

    def __init__(self, client: HttpClient, connection: _Connection) -> None:
        self.status = connection.status
        self.headers: Headers = connection.headers
        self.framed = connection.framed
        self._client = client
        self._connection: _Connection | None = connection

    async def read(self, silence_s: float, sink: Sink | None = None) -> bytes:
        """The next piece of the body; empty: the body has ended. During the wait pieces go to
        `sink` instead, as long as that takes them.

        Raises:
            AnswerError: the rest doesn't come; `silence_s` passed without any.
        """
        assert self._connection is not None
        return await self._connection.read(silence_s, sink)

    def close(self) -> None:
        """Let the connection go. An answer that hasn't been read to its end is broken off."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.reusable:
            self._client.release(connection)
        else:
            connection.abort()


class _State(Enum):
    """What a connection has. It goes from `IDLE` through `ASKED`, `HEARD` and one kind of body back
    to `IDLE`, or to one of the last four states, in which it takes no other question.
    """

    IDLE = "no question, or the whole answer to the last one"
    ASKED = "a question, and no byte of its answer"
    HEARD = "a part of a head"
    FRAMED = "a head, and not the whole body, which says where it ends"
    UNFRAMED = "a head, and not the whole body, which ends with the connection"
    SPENT = "the whole answer"
    CLOSED = "the whole answer, which ended with the connection"
    UNHEARD = "broken off before any byte of the answer"
    LOST = "broken off within the answer"


_HEADLESS: Final = (_State.ASKED, _State.HEARD)
_WITH_BODY: Final = (_State.FRAMED, _State.UNFRAMED)
_OPEN: Final = (*_HEADLESS, *_WITH_BODY)
_COMPLETE: Final = (_State.IDLE, _State.SPENT, _State.CLOSED)
# Their answers end with the head, whatever length it tells (RFC 9112, 6.3).
_BODILESS: Final = (204, 304)


class _Connection(asyncio.Protocol):
    """A connection, with at most one question at a time."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._state = _State.IDLE
        self._failure: AnswerError | None = None
        # Done once the answer has a head, or the connection is lost.
        self._head: asyncio.Future[None] = self._loop.create_future()
        self._head_bytes = 0
        self._method = b""
        # Sends the pieces of a body; None: there are none, or all were sent.
        self._upload: asyncio.Task[None] | None = None
        self._unread = bytearray()
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._sink: Sink | None = None
        self._heard_at = 0.0

    @property
    def usable(self) -> bool:
        return self._state is _State.IDLE and not self._transport.is_closing()

    @property
    def reusable(self) -> bool:
        """Whether the connection can take another question after an answer."""
        return self.usable and not self._unread and self._upload is None

    @property
    def unheard(self) -> bool:
        """Whether the connection broke off before any byte of the answer."""
        return self._state is _State.UNHEARD

    @property
    def framed(self) -> bool:
        return self._state not in (_State.UNFRAMED, _State.CLOSED)

    def abort(self) -> None:
        if self._upload is not None:
            self._upload.cancel()
        self._transport.abort()

    async def exchange(self, question: Question, authority: bytes, head_s: float) -> None:
        """Send the question, and wait for the head of its answer. Raises: AnswerError."""
        self._state = _State.ASKED
        self.headers = []
        self._head = self._loop.create_future()
        self._head_bytes = 0
        self._method = question.method
        lines = [b"%b %b HTTP/1.1" % (question.method, question.target), b"host: " + authority]
        lines += [b"%b: %b" % header for header in question.headers]
        body = question.body
        if isinstance(body, bytes | bytearray):
            if body or question.method in (b"POST", b"PUT", b"PATCH"):
                lines.append(b"content-length: %d" % len(body))
            self._transport.writelines((b"\r\n".join(lines), b"\r\n\r\n", body))
            await self._headed(head_s)
            return
        framing = b"content-length: %d" % question.length
        self._transport.write(b"\r\n".join((*lines, framing, b"", b"")))
        upload = self._upload = self._loop.create_task(self._send_pieces(body, head_s))
        upload.add_done_callback(self._check_upload)
        await asyncio.wait((upload, self._head), return_when=asyncio.FIRST_COMPLETED)
        if upload.done() and not upload.cancelled():
            upload.result()
        await self._headed(head_s)
        # A server may answer before it has the whole body: it refuses the body, or goes on reading.
        if self.status >= _FIRST_REFUSAL:
            upload.cancel()

    async def _send_pieces(self, pieces: AsyncIterator[bytes], silence_s: float) -> None:
        """Raises: AnswerError: the server takes no more. Exception: reading a piece has failed."""
        async for piece in pieces:
            try:
                async with asyncio.timeout(silence_s):
                    await self._writable.wait()
            except TimeoutError:
                reason = f"took no more of the body for {silence_s:g} s"
                raise AnswerError(reason, late=True) from None
            self._transport.write(piece)
        self._upload = None

    def _check_upload(self, upload: asyncio.Task[None]) -> None:
        if not upload.cancelled() and (error := upload.exception()) is not None:
            self._lose(f"didn't get the whole body: {error}")

    async def _headed(self, head_s: float) -> None:
        try:
            async with asyncio.timeout(head_s):
                await self._head
        except TimeoutError:
            raise AnswerError(f"sent no answer within {head_s:g} s", late=True) from None
        self._check()

    async def read(self, silence_s: float, sink: Sink | None) -> bytes:
        self._heard_at = self._loop.time()
        while not self._unread and self._state not in _COMPLETE:
            self._check()
            left_s = self._heard_at + silence_s - self._loop.time()
            if left_s <= 0:
                raise AnswerError(f"was silent for {silence_s:g} s", late=True)
            self._news.clear()
            self._sink = sink
            timer = self._loop.call_later(left_s, self._news.set)
            try:
                await self._news.wait()
            finally:
                timer.cancel()
                self._sink = None
        piece = bytes(self._unread)
        self._unread.clear()
        if not (self._transport.is_reading() or self._transport.is_closing()):
            self._transport.resume_reading()
        return piece

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _lose(self, reason: str) -> None:
        """End the connection. `reason` tells why an answer that hasn't ended breaks off."""
        if self._state in _OPEN:
            self._failure = AnswerError(reason)
            self._turn(_State.UNHEARD if self._state is _State.ASKED else _State.LOST)
        self._writable.set()
        self.abort()

    def _turn(self, state: _State) -> None:
        self._state = state
        self._news.set()
        if not self._head.done():
            self._head.set_result(None)

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no class of asyncio.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._state not in _OPEN:
            # That is an answer to no question.
            self.abort()
            return
        if self._state is _State.ASKED:
            self._state = _State.HEARD
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._lose(f"sent an answer that is no HTTP: {error}")
            return
        if self._state is _State.HEARD:
            self._head_bytes += len(data)
            if self._head_bytes > _MOST_HEAD_BYTES:
                self._lose(f"sent a head of more than {_MOST_HEAD_BYTES >> 10} KiB")
            return
        if self._unread and self._sink is not None and self._sink(bytes(self._unread)):
            self._unread.clear()
        if len(self._unread) > _MOST_UNREAD_BYTES and self._transport.is_reading():
            self._transport.pause_reading()
        if self._unread or self._state not in _WITH_BODY:
            self._news.set()

    def eof_received(self) -> bool:
        # A body without a length ends with the connection.
        if self._state is _State.UNFRAMED:
            self._turn(_State.CLOSED)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        cause = "" if error is None else f": {error}"
        self._lose(f"closed the connection before its answer was complete{cause}")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # From the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._state is _State.HEARD:  # Else it is a trailer.
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._state is not _State.HEARD:
            # An answer to no question, behind the one that was asked for.
            self._state = _State.SPENT if self._state is _State.IDLE else self._state
            return
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self.headers = []
        elif self.status > _LAST_STATUS:
            self._lose(f"answered with {self.status}, which is no status of HTTP")
        elif self._method == b"HEAD" or self.status in _BODILESS:
            # The parser doesn't know the question, and would wait for a body.
            self._turn(_State.SPENT)
        elif any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers):
            self._turn(_State.FRAMED)
        else:
            self._turn(_State.UNFRAMED)

    def on_body(self, body: bytes) -> None:
        if self._state in _WITH_BODY:
            self._heard_at = self._loop.time()
            self._unread += body

    def on_message_complete(self) -> None:
        if self._state in _WITH_BODY:
            persists = self._parser.should_keep_alive()
            self._turn(_State.IDLE if persists else _State.SPENT)
