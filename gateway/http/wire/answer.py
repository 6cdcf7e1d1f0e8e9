"""Writes the answers of requests as HTTP responses: one JSON body, or a stream of events.
Notices when the client leaves. The writer of the API makes the text: for chats
`gateway/http/openai/chat_writer.py`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Final

import msgspec
from msgspec import Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.http.wire.access_log import note_usage
from gateway.http.wire.errors import (
    CLIENT_LEFT,
    envelope,
    error_response,
    note_outcome,
    note_refusal,
)
from gateway.http.wire.exchange import direct_writer_of
from gateway.models.model_supervisor import ModelSupervisor
from gateway.requests.choices import Choice, Choices, Format, pieces
from gateway.requests.request import AnswerPiece, ClientGoneError, Request
from gateway.system.refusal import Refusal
from protocol.answers import Usage


class Framing(Struct, frozen=True):
    """How a kind of stream writes everything but the answer. While no event comes, `waiting` is
    sent before the first event, and `pause` after it; clients ignore both. `failure` makes the last
    event of a stream that fails, from the refusal and the path of the request. `remark` makes an
    event from the name and the text of a header that was not known when the headers were sent.
    """

    media_type: bytes
    waiting: bytes
    pause: bytes
    failure: Callable[[Refusal, str], bytes]
    remark: Callable[[bytes, bytes], bytes]


def _error_event(refusal: Refusal, path: str) -> bytes:
    return b"event: error\ndata: " + envelope(refusal, path) + b"\n\n"


def _error_line(refusal: Refusal, path: str) -> bytes:
    return envelope(refusal, path) + b"\n"


def _remark(name: bytes, text: bytes) -> bytes:
    return b": %b: %b\n\n" % (name, text)


def _remark_line(name: bytes, text: bytes) -> bytes:
    """A line of an answer without text, in which the header is a field that clients ignore."""
    nothing = {"response": "", "message": {"role": "assistant", "content": ""}, "done": False}
    return msgspec.json.encode(nothing | {name.decode(): text.decode()}) + b"\n"


COMMENT: Final = b": waiting\n\n"
EVENTS: Final = Framing(
    b"text/event-stream; charset=utf-8",
    waiting=COMMENT,
    pause=COMMENT,
    failure=_error_event,
    remark=_remark,
)
# Anthropic's own keep-alive event. Anthropic's clients expect it only once a message has begun.
MESSAGE_EVENTS: Final = msgspec.structs.replace(
    EVENTS, pause=b'event: ping\ndata: {"type":"ping"}\n\n'
)
# Clients fail on an empty line, since they read each line as JSON. Spaces before a line are
# allowed.
LINES: Final = Framing(
    b"application/x-ndjson",
    waiting=b" ",
    pause=b" ",
    failure=_error_line,
    remark=_remark_line,
)


def framing_of(headers: Iterable[tuple[bytes, bytes]]) -> Framing | None:
    """The framing of a response with these headers. None: the response is no stream."""
    kind = dict(headers).get(b"content-type", b"").partition(b";")[0]
    known = {framing.media_type.partition(b";")[0]: framing for framing in (EVENTS, LINES)}
    return known.get(kind)


NOT_ENFORCED: Final = b"x-bulkhead-not-enforced"
_LONGEST_HEADER: Final = 1000
_UNBUFFERED: Final = [
    (b"cache-control", b"no-cache"),
    # For nginx.
    (b"x-accel-buffering", b"no"),
]


def stream_headers(framing: Framing) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", framing.media_type), *_UNBUFFERED]


STREAM_HEADERS: Final = stream_headers(EVENTS)


def server_sent_event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


# The last event of a stream. OpenAI's responses end without it, but Open Responses demands it.
DONE: Final = server_sent_event(b"[DONE]")


class Reply(Response):
    """Writes the answers of requests that are in the queue, and cancels the requests when the
    client leaves.

    A failure before the first byte is a plain error response.
    """

    def __init__(self, supervisor: ModelSupervisor, requests: Sequence[Request]) -> None:
        self.background = None
        self._supervisor = supervisor
        self._requests = requests

    async def write(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises: ClientGoneError."""
        raise NotImplementedError

    @property
    def usage(self) -> Usage | None:
        """The tokens that were computed so far. None: no tokens were."""
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.create_task(self._watch_client(receive))
        try:
            await self.write(scope, receive, send)
        except ClientGoneError:
            note_outcome(scope, CLIENT_LEFT)
        finally:
            watcher.cancel()
            self._cancel()
            if (usage := self.usage) is not None:
                note_usage(scope, usage)

    async def _watch_client(self, receive: Receive) -> None:
        await until_gone(receive)
        self._cancel()
        for request in self._requests:
            request.abandon()

    def _cancel(self) -> None:
        for request in self._requests:
            if not request.over:
                self._supervisor.traffic.cancel(request)


async def until_gone(receive: Receive) -> None:
    """Wait until the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class TextAnswer(Reply):
    """The answers of one or more requests. A stream that waits for long begins with a comment, so a
    later failure is an event of the stream. If one request fails, all requests end.
    """

    def __init__(
        self,
        supervisor: ModelSupervisor,
        requests: Sequence[Request],
        form: Format,
        *,
        stream: bool,
        framing: Framing = EVENTS,
        headers: Mapping[str, str] | None = None,
        complete: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`requests` are the choices, in order: for each prompt the same number of them. `headers`
        are for an answer, not for an error. `complete` is awaited when the whole answer has come,
        before its end is sent to the client.
        """
        super().__init__(supervisor, requests)
        self._form = form
        prompts = sum(request.prompt_counts for request in requests)
        self._choices = Choices(requests, form, len(requests) // prompts)
        self._stream = stream
        self._framing = framing
        self._own_headers = headers or {}
        self._complete = complete

    @property
    def usage(self) -> Usage | None:
        return self._choices.usage

    async def write(self, scope: Scope, receive: Receive, send: Send) -> None:
        write = self._write_stream if self._stream else self._write_whole
        await write(scope, receive, send)

    async def _write_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(pieces(self._requests)) as arriving:
                async for index, piece in arriving:
                    self._choices.store(index, piece)
        except Refusal as refusal:
            await error_response(refusal, scope["path"])(scope, receive, send)
            return
        body = self._choices.whole()
        if self._complete is not None:
            await self._complete()
        response = Response(body, headers=self._own_headers, media_type="application/json")
        response.raw_headers += self._unenforced()
        await response(scope, receive, send)

    async def _write_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        sent: list[tuple[bytes, bytes]] = []
        choices = self._choices
        writer = direct_writer_of(scope)

        def shortcut(piece: AnswerPiece) -> bool:
            if choices.unopened or writer is None or not writer.writable:
                return False
            try:
                writer.write(self._form.piece(0, piece))
            except Exception:
                # The request's task gets the piece after that and raises the same error, which is
                # logged and ends this stream only.
                return False
            return True

        try:
            async with aclosing(pieces(self._requests, shortcut)) as arriving:
                async for index, piece in arriving:
                    framing = self._framing
                    if piece.idle:
                        events = framing.waiting if index in choices.unopened else framing.pause
                    else:
                        events = choices.write(index, piece)
                    if not started:
                        started = True
                        sent = self._unenforced()
                        await self._start_stream(send)
                    elif (late := self._unenforced()) and not sent:
                        # The headers were sent while the request waited. Only its worker knows what
                        # is not enforced.
                        sent = late
                        events = framing.remark(*late[0]) + events
                    if not choices.unfinished:
                        events += choices.closing()
                        if self._complete is not None:
                            await self._complete()
                    more = bool(choices.unfinished)
                    await send({"type": "http.response.body", "body": events, "more_body": more})
        except Refusal as refusal:
            if not started:
                await error_response(refusal, scope["path"])(scope, receive, send)
                return
            note_refusal(scope, refusal)
            events = self._framing.failure(refusal, scope["path"])
            await send({"type": "http.response.body", "body": events, "more_body": False})

    def _unenforced(self) -> list[tuple[bytes, bytes]]:
        """The header that names the parts of the request's schemas that are not enforced."""
        names = dict.fromkeys(name for request in self._requests for name in request.unenforced)
        if not names:
            return []
        text = ", ".join(names).encode("ascii", "backslashreplace")
        printable = bytes(byte if 32 <= byte < 127 else 32 for byte in text)
        if len(printable) > _LONGEST_HEADER:
            printable = printable[:_LONGEST_HEADER] + b", and others"
        return [(NOT_ENFORCED, printable)]

    async def _start_stream(self, send: Send) -> None:
        added = [(name.encode(), value.encode()) for name, value in self._own_headers.items()]
        added += self._unenforced()
        headers = [*stream_headers(self._framing), *added]
        await send({"type": "http.response.start", "status": 200, "headers": headers})


# A text that stands nowhere else in an event.
_MARK: Final = secrets.token_hex(16)

_encode = msgspec.json.Encoder().encode


class TextEvents:
    """Makes the events of a stream that differ only in a text. Most events do, and building and
    encoding the object around the text takes ten times as long as encoding the text.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._around: dict[tuple[int, str | None], tuple[bytes, bytes]] = {}

    def write(self, index: int, text: str, event: Callable[[str], bytes]) -> bytes:
        """`event` makes the whole event of a text. It is called once for each choice, and again
        when another worker resumes the request, since events have the worker's fingerprint.
        """
        kind = index, self._request.progress.fingerprint
        if kind not in self._around:
            before, after = event(_MARK).split(_encode(_MARK))
            self._around[kind] = before, after
        before, after = self._around[kind]
        return before + _encode(text) + after


class CountFormat:
    """An answer without pieces: one object, which is made from the usage. In a stream the object is
    the only line.
    """

    def __init__(self, written: Callable[[Usage], bytes]) -> None:
        self._written = written

    def opening(self, index: int) -> bytes:
        return b""

    def piece(self, index: int, piece: AnswerPiece) -> bytes:
        return b""

    def closing(self, usage: Usage) -> bytes:
        return self._written(usage) + b"\n"

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return self._written(usage)
