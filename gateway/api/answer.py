"""From a request's answer to HTTP: as one JSON body or as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.errors import envelope, error_response
from gateway.api.record import note_usage
from gateway.dispatch.refusal import Refusal
from gateway.dispatch.request import ClientGoneError, Piece, Request
from gateway.model.compartment import Compartment
from protocol.messages import FinishReason, Usage
from protocol.parts import AnswerPart, merged

_COMMENT: Final = b": waiting\n\n"
_STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx would collect the events otherwise.
    (b"x-accel-buffering", b"no"),
]


class Format(Protocol):
    """How one API writes an answer down."""

    def opening(self) -> bytes:
        """Events before the first piece."""

    def piece(self, piece: Piece) -> bytes:
        """The events of one piece of the answer."""

    def closing(self, usage: Usage) -> bytes:
        """Events after the last piece."""

    def whole(
        self, parts: Sequence[AnswerPart], finish_reason: FinishReason, usage: Usage
    ) -> bytes:
        """The body of an answer that isn't streamed."""


def server_sent_event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


class Answer(Response):
    """Reads a submitted request to its end and writes it; cancels it when the client leaves.

    Before the first byte every failure is a plain error response. A stream that has waited for
    long begins with comments, and a later failure is an `error` event.
    """

    def __init__(
        self, compartment: Compartment, request: Request, form: Format, *, stream: bool
    ) -> None:
        self.background = None
        self._compartment = compartment
        self._request = request
        self._form = form
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.create_task(self._watch_client(receive))
        try:
            write = self._write_stream if self._stream else self._write_whole
            await write(scope, receive, send)
        except ClientGoneError:
            return
        finally:
            watcher.cancel()
            if not self._request.over:
                self._compartment.traffic.cancel(self._request)

    async def _watch_client(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self._request.over:
            self._compartment.traffic.cancel(self._request)
        self._request.abandon()

    async def _write_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts: list[AnswerPart] = []
        try:
            while True:
                piece = await self._request.take()
                parts += piece.parts
                if piece.finish_reason is not None and piece.usage is not None:
                    break
        except Refusal as refusal:
            await error_response(refusal)(scope, receive, send)
            return
        note_usage(scope, piece.usage)
        body = self._form.whole(merged(parts), piece.finish_reason, piece.usage)
        await Response(body, media_type="application/json")(scope, receive, send)

    async def _write_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            piece = await self._request.take()
        except Refusal as refusal:
            await error_response(refusal)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        opened = False
        try:
            while True:
                events = _COMMENT
                if not piece.idle:
                    events = self._form.piece(piece)
                    if not opened:
                        events = self._form.opening() + events
                        opened = True
                if piece.finish_reason is not None and piece.usage is not None:
                    note_usage(scope, piece.usage)
                    events += self._form.closing(piece.usage)
                    break
                await send({"type": "http.response.body", "body": events, "more_body": True})
                piece = await self._request.take()
        except Refusal as refusal:
            events = b"event: error\n" + server_sent_event(envelope(refusal))
        await send({"type": "http.response.body", "body": events, "more_body": False})
