"""Writes the answer of another server to the client, as it comes.

A stream that breaks off ends with an error event; any other answer that breaks off is cut, so that
no client takes the part for the whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.http.passing.events import COMMENTS, LAST, EventsWithoutUsage, WholeEvents
from gateway.http.passing.headers import client_headers
from gateway.http.passing.usage import UsageReader
from gateway.http.wire.access_log import note_usage, record_of
from gateway.http.wire.answer import Framing, framing_of, stream_headers, until_gone
from gateway.http.wire.errors import (
    CLIENT_LEFT,
    PASSED_ERROR,
    error_response,
    note_outcome,
    note_refusal,
)
from gateway.http.wire.exchange import direct_writer_of
from gateway.requests.request import REMINDER_S
from gateway.system.http_client import AnswerError, Headers, Sink
from gateway.system.refusal import Refusal


def refusal_of(error: AnswerError, server: str) -> Refusal:
    """`server` names the server in a sentence."""
    return Refusal("deadline_exceeded" if error.late else "bad_gateway", f"{server} {error}.")


# How much of a server's answer an error quotes.
_LONGEST_QUOTE: Final = 1000


class ForeignAnswer(Protocol):
    """The answer of another server: its head, and its body, which `read` gives piece by piece. For
    `framed` see `Answer`.
    """

    status: int
    headers: Headers
    framed: bool

    async def read(self, silence_s: float, sink: Sink | None = None) -> bytes:
        """As `Answer.read`. Raises: AnswerError, Refusal."""


class RelayResponse(Response):
    """The answer of another server, as the response to a client's request. `further_headers` are
    added to those of the answer.
    """

    def __init__(
        self,
        answer: AbstractAsyncContextManager[ForeignAnswer],
        server: str,
        usage: UsageReader,
        *,
        silence_s: float,
        framing: Framing | None = None,
        hides_usage: bool = False,
    ) -> None:
        """Entering `answer` waits until the server may be asked, and asks it; this raises Refusal
        or AnswerError if there is no answer. Meanwhile a client that asked for a stream, framed as
        in `framing`, gets comments. Leaving `answer` releases everything, also when the client
        leaves. The answer may pause for `silence_s`. `hides_usage`: the usage in a stream is not
        for the client.
        """
        self.background = None
        self._answer = answer
        self._server = server
        self._silence_s = silence_s
        self._framing = framing
        self._usage = usage
        self._events = EventsWithoutUsage if hides_usage else WholeEvents
        self._started = False
        self.further_headers: dict[str, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        left = False

        async def watch_client() -> None:
            nonlocal left
            await until_gone(receive)
            left = True
            task.cancel()

        watcher = asyncio.create_task(watch_client())
        try:
            await self._write(scope, receive, send)
        except asyncio.CancelledError:
            if not left:
                raise
            task.uncancel()
            note_outcome(scope, CLIENT_LEFT)
        finally:
            watcher.cancel()
            if (usage := self._usage.spent) is not None:
                note_usage(scope, usage)

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._awaited(send) as answer:
                record_of(scope).passed = True
                if answer.status >= 400:
                    note_outcome(scope, PASSED_ERROR)
                await self._write_answer(answer, scope, send)
        except Refusal as refusal:
            await self._end(refusal, scope, receive, send)
        except ClientDisconnect:
            note_outcome(scope, CLIENT_LEFT)
        except AnswerError as error:
            await self._end(refusal_of(error, self._server), scope, receive, send)

    @asynccontextmanager
    async def _awaited(self, send: Send) -> AsyncGenerator[ForeignAnswer]:
        """The answer. While it doesn't come, a stream gets comments."""
        framing = self._framing
        if framing is None:
            async with self._answer as answer:
                yield answer
            return
        opening = asyncio.ensure_future(self._answer.__aenter__())
        try:
            while not (await asyncio.wait((opening,), timeout=REMINDER_S))[0]:
                await self._start(200, stream_headers(framing), send)
                await _send_piece(framing.waiting, send)
        except BaseException:
            opening.cancel()
            raise
        answer = opening.result()
        try:
            yield answer
        except BaseException as error:
            if not await self._answer.__aexit__(type(error), error, error.__traceback__):
                raise
        else:
            await self._answer.__aexit__(None, None, None)

    async def _write_answer(self, answer: ForeignAnswer, scope: Scope, send: Send) -> None:
        framing = framing_of(answer.headers)
        if self._started and framing is not self._framing:
            # The stream has begun, and the server has answered with something else.
            raise await self._not_streamed(answer)
        # Servers that speak HTTP/1.0 frame no stream, as mlx_lm.server's.
        unfinished = self._framing is not None and framing is not None and not answer.framed
        self._framing = framing
        # A stream may end with another event than its server's.
        headers = client_headers(answer.headers, answer.status, framed=framing is None)
        await self._start(answer.status, headers, send)
        events = None if framing is None else self._events(framing)

        loop = asyncio.get_running_loop()
        whole_at = loop.time()

        def checked(piece: bytes) -> bytes:
            nonlocal unfinished, whole_at
            self._usage.read(piece)
            whole = piece
            if events is not None:
                whole = events.add(piece)
                self._usage.count_deltas(whole)
            if unfinished and LAST.search(whole):
                unfinished = False
            if whole and not COMMENTS.fullmatch(whole):
                whole_at = loop.time()
            return whole

        def stalls() -> bool:
            return loop.time() - whole_at > self._silence_s

        writer = direct_writer_of(scope)

        def sink(piece: bytes) -> bool:
            if writer is None or not writer.writable or stalls():
                return False
            writer.write(checked(piece))
            return True

        while piece := await answer.read(self._silence_s, sink):
            await _send_piece(checked(piece), send)
            if stalls():
                raise AnswerError(f"completed no event for {self._silence_s:g} s", late=True)
        if unfinished and not (events is not None and LAST.search(events.rest)):
            raise AnswerError("closed the connection before its answer was complete")
        rest = b"" if events is None else events.rest
        await send({"type": "http.response.body", "body": rest, "more_body": False})

    async def _not_streamed(self, answer: ForeignAnswer) -> Refusal:
        """Why the server's answer is no stream."""
        if answer.status < 400:
            return Refusal("bad_gateway", f"{self._server} streams no answer: ask for a whole one.")
        text = bytearray()
        while len(text) < _LONGEST_QUOTE and (piece := await answer.read(self._silence_s)):
            text += piece
        quote = text[:_LONGEST_QUOTE].decode(errors="replace")
        return Refusal("bad_gateway", f"{self._server} answered with {answer.status}: {quote}")

    async def _start(self, status: int, headers: Headers, send: Send) -> None:
        if not self._started:
            self._started = True
            further = self.further_headers.items()
            headers = [*headers, *((name.encode(), value.encode()) for name, value in further)]
            await send({"type": "http.response.start", "status": status, "headers": headers})

    async def _end(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._started:
            await error_response(refusal, scope["path"])(scope, receive, send)
            return
        note_refusal(scope, refusal)
        if self._framing is not None:
            last = self._framing.failure(refusal, scope["path"])
            await send({"type": "http.response.body", "body": last, "more_body": False})
        elif (writer := direct_writer_of(scope)) is not None:
            writer.cut()


async def _send_piece(piece: bytes, send: Send) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": True})
