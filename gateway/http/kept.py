"""What routes need to keep answers in the mailbox, and to give them out again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.http.answer import COMMENT, STREAM_HEADERS, server_sent_event, until_gone
from gateway.http.auth import caller_of, seat_of
from gateway.http.errors import envelope, error_response
from gateway.http.model_call import ModelCall, deadline_s
from gateway.http.record import CLIENT_LEFT, note_outcome, note_usage
from gateway.mailbox.entry import Api, MailboxEntry, Name, Work
from gateway.mailbox.jobs import AnswerJob
from gateway.mailbox.mailbox import Mailbox
from gateway.models.fleet import REMINDER_S
from gateway.requests.request import Request
from gateway.system.refusal import Refusal
from protocol.requests import Generate


def mailbox_of(request: HttpRequest) -> Mailbox:
    mailbox: Mailbox = request.app.state.mailbox
    return mailbox


def owner_of(request: HttpRequest) -> str:
    """To whom its answers belong; everybody is the same one while there are no keys."""
    return caller_of(request).owner


def name_of(request: HttpRequest) -> Name:
    """The answer that the path names, if it is the client's own."""
    return owner_of(request), request.path_params["id"]


def _work_of(requests: Sequence[Request], form: bytes, *, cut_is_incomplete: bool) -> Work:
    """What it takes to make these requests again, which are answers to the same."""
    first = requests[0]
    task = first.task
    assert isinstance(task, Generate)
    # Whoever fetches the answer has no headers that could say what was left out.
    constraint, tools = task.constraint, task.tools
    task = msgspec.structs.replace(
        task,
        constraint=constraint and msgspec.structs.replace(constraint, whole=True),
        tools=tools and msgspec.structs.replace(tools, whole=True),
    )
    return Work(
        first.id,
        task,
        len(requests),
        first.terms.priority,
        first.terms.keep_alive_s,
        first.terms.params,
        form,
        cut_is_incomplete,
    )


def new_entry(call: ModelCall, answer_id: str, api: Api) -> MailboxEntry:
    return MailboxEntry(
        owner=call.caller.owner,
        id=answer_id,
        api=api,
        model=call.model.id,
        status="queued",
        created_at=time.time(),
    )


async def accept(
    call: ModelCall,
    entry: MailboxEntry,
    requests: Sequence[Request],
    form: bytes,
    body: bytes,
    *,
    items: bytes = b"",
    streams: bool = False,
    cut_is_incomplete: bool = False,
) -> AnswerJob:
    """Have the mailbox make the answers to these requests, within X-Deadline-S or else
    mailbox.deadline_s. `form` is what the API's family makes their writer from, `body` is given out
    until they are there; with `streams` a client follows the events from now on.

    Raises:
        Refusal: the header can't be read, the mailbox's queue is full, it can't be written down, or
            its name is taken.
    """
    work = _work_of(requests, form, cut_is_incomplete=cut_is_incomplete)
    wait_s = deadline_s(call.http, call.fleet.settings.mailbox.deadline_s)
    entry.deadline_at = entry.created_at + wait_s
    mailbox, seat = mailbox_of(call.http), seat_of(call.http)
    return await mailbox.accept(entry, work, items, body, call.share, seat, streams=streams)


def not_found(what: str, answer_id: str) -> Refusal:
    return Refusal(
        "not_found",
        f"There is no {what} {answer_id[:200]!r}: it never was, was deleted, has expired "
        "(mailbox.keep_s, mailbox.size), or belongs to another key.",
        param="id",
    )


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
