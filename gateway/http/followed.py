"""An answer of the mailbox for a client that waits for it, or has come back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.http.answer import COMMENT, STREAM_HEADERS, server_sent_event, until_gone
from gateway.http.errors import envelope, error_response
from gateway.http.record import CLIENT_LEFT, note_outcome, note_usage
from gateway.mailbox.jobs import AnswerJob
from gateway.models.fleet import REMINDER_S


class Followed(Response):
    """What becomes of a job goes on without its client. A stream begins behind `after` events."""

    def __init__(
        self,
        job: AnswerJob,
        *,
        stream: bool,
        after: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.background = None
        self.job = job
        self._stream = stream
        self._after = after
        self._extra = headers or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                headers.update(self._extra)
                message["headers"] = headers.raw
            await send(message)

        write = self._write_stream if self._stream else self._write_whole
        with self.job.follow() as more:
            writing = asyncio.create_task(write(scope, receive, send_with_headers, more))
            leaving = asyncio.create_task(until_gone(receive))
            try:
                await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if writing.done():
                    await writing
                else:
                    note_outcome(scope, CLIENT_LEFT)
            finally:
                writing.cancel()
                leaving.cancel()
                await asyncio.gather(writing, leaving, return_exceptions=True)
                if self.job.usage is not None:
                    note_usage(scope, self.job.usage, counted=True)

    async def _write_whole(
        self, scope: Scope, receive: Receive, send: Send, more: asyncio.Event
    ) -> None:
        job = self.job
        await job.settled.wait()
        if job.outcome is None or job.refusal is not None:
            await self._refused(scope, receive, send)
            return
        outcome = job.outcome
        response = Response(
            outcome.body, status_code=outcome.http_status, media_type="application/json"
        )
        await response(scope, receive, send)

    async def _write_stream(
        self, scope: Scope, receive: Receive, send: Send, more: asyncio.Event
    ) -> None:
        job = self.job
        started, sent = False, self._after
        while not (job.over and sent >= len(job.events)):
            more.clear()
            if sent < len(job.events):
                chunk = b"".join(job.events[sent:])
                sent = len(job.events)
            else:
                try:
                    async with asyncio.timeout(REMINDER_S):
                        await more.wait()
                    continue
                except TimeoutError:
                    chunk = COMMENT
            if not started:
                started = True
                await send(
                    {"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS]}
                )
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if not started and job.refusal is not None:
            await self._refused(scope, receive, send)
            return
        if not started:
            await send({"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS]})
        last = b""
        if job.refusal is not None:
            note_outcome(scope, job.refusal.code)
        if job.refusal is not None and job.outcome is None:
            # Of the answer there will be more, but not on this connection.
            last = b"event: error\n" + server_sent_event(envelope(job.refusal, scope["path"]))
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _refused(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.job.refusal is not None
        await error_response(self.job.refusal, scope["path"])(scope, receive, send)
