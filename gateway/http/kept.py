"""Answers that the mailbox keeps: how routes hand them to it, how clients follow them, and the kept
chats.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.datastructures import MutableHeaders
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.http.access_log import note_usage
from gateway.http.answer import COMMENT, STREAM_HEADERS, server_sent_event, until_gone
from gateway.http.auth import caller_of, seat_of
from gateway.http.bodies import json_response, read_limit, reads_newest_first
from gateway.http.chat_writer import ChatFormat
from gateway.http.errors import CLIENT_LEFT, envelope, error_response, note_outcome
from gateway.http.model_call import ModelCall, deadline_s
from gateway.http.openapi import GENERATES, Described, Operation
from gateway.mailbox.entry import AnswerOutcome, Api, MailboxEntry, Name, Work
from gateway.mailbox.jobs import AnswerJob
from gateway.mailbox.mailbox import Mailbox
from gateway.models.fleet import REMINDER_S
from gateway.requests.choices import Format
from gateway.requests.request import Request
from gateway.requests.share import share_of
from gateway.system.refusal import Refusal
from protocol.requests import Generate


def mailbox_of(request: HttpRequest) -> Mailbox:
    mailbox: Mailbox = request.app.state.mailbox
    return mailbox


def owner_of(request: HttpRequest) -> str:
    """The owner of the answers of this client. Without API keys all clients are the same owner."""
    return caller_of(request).owner


def name_of(request: HttpRequest) -> Name:
    """The name of the answer in the path, among the client's own."""
    return owner_of(request), request.path_params["id"]


def _work_of(requests: Sequence[Request], form: bytes, *, cut_is_incomplete: bool) -> Work:
    """What the mailbox needs to make these requests again. They are answers to the same prompt."""
    first = requests[0]
    task = first.task
    assert isinstance(task, Generate)
    # A client that fetches the answer later gets no headers that name what was left out.
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
    mailbox.deadline_s.

    `form` is what the API's family makes the writer from. `body` is what clients get until the
    answer is complete. With `streams` a client follows the events from now on.

    Raises:
        Refusal: the header can't be read, the mailbox's queue is full, the answer can't be written
            to the mailbox's file, or its name is taken.
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
    """The answer of a job of the mailbox, which goes on without its client. A stream begins behind
    the first `after` events.
    """

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
            # The answer goes on, but not on this connection.
            last = b"event: error\n" + server_sent_event(envelope(job.refusal, scope["path"]))
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _refused(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.job.refusal is not None
        await error_response(self.job.refusal, scope["path"])(scope, receive, send)


_PATH = "/v1/chat/completions"
_RETRY_AFTER_S = 1
_MESSAGES = "/messages"


class ChatForm(Struct):
    """What the writer of a kept chat is made from, also after the gateway has ended."""

    model_id: str
    created: int
    include_usage: bool
    include_reasoning: bool


class PendingBody(Struct):
    """A chat completion that is not complete yet."""

    id: str
    created: int
    model: str
    object: str = "chat.completion"
    status: str = "in_progress"
    choices: list[Any] = []


def form_of(told: ChatForm, first: Request) -> ChatFormat:
    return ChatFormat(
        told.model_id,
        first,
        include_usage=told.include_usage,
        include_reasoning=told.include_reasoning,
        created=told.created,
    )


class ChatFamily:
    def form(self, form: bytes, request: Request, first_number: int) -> Format:
        return form_of(msgspec.json.decode(form, type=ChatForm), request)

    def failure(self, body: bytes, refusal: Refusal) -> AnswerOutcome:
        return AnswerOutcome("failed", refusal.status, envelope(refusal, _PATH))

    def cancellation(self, body: bytes) -> AnswerOutcome:
        # A chat is cancelled only by deleting it.
        return self.failure(body, Refusal("not_found", "The answer was deleted."))

    def first_events(self, body: bytes, number: int) -> bytes:
        return b""

    def last_event(self, outcome: AnswerOutcome, number: int) -> bytes:
        return b"event: error\n" + server_sent_event(outcome.body)


async def keep(
    call: ModelCall, requests: Sequence[Request], form: ChatForm, *, stream: bool
) -> Followed:
    """Have the answer made and kept, whether or not its client stays.

    Raises:
        Refusal: it can't be written to the mailbox's file, or its id is taken.
    """
    entry = new_entry(call, f"chatcmpl-{requests[0].id}", "chat")
    # It waits in the model's queue like any other request, not in the mailbox's.
    entry.status, entry.attempts = "in_progress", 1
    body = msgspec.json.encode(PendingBody(entry.id, form.created, form.model_id))
    job = await accept(call, entry, requests, msgspec.json.encode(form), body, streams=stream)
    return Followed(job, stream=stream, headers={"x-mailbox-id": entry.id})


async def retrieve(request: HttpRequest) -> Response:
    """A kept chat completion, or the error that it ended with; 202 until it is complete."""
    name = name_of(request)
    found = await mailbox_of(request).find(name, share_of(request.scope))
    if found is None or found.entry.api != "chat":
        raise await _no_messages(request, name) or not_found("kept chat completion", name[1])
    headers = {}
    if found.entry.pending:
        headers["retry-after"] = str(_RETRY_AFTER_S)
    elif found.http_status != 200:
        # Fetching it again doesn't change the outcome.
        headers["x-should-retry"] = "false"
    body = _with_status(found.entry, found.body)
    return Response(
        body, status_code=found.http_status, headers=headers, media_type="application/json"
    )


async def _no_messages(request: HttpRequest, name: Name) -> Refusal | None:
    """The refusal for a client that asks for a chat's messages, which could also be an id."""
    owner, asked = name
    kept_id = asked.removesuffix(_MESSAGES)
    if kept_id == asked:
        return None
    found = await mailbox_of(request).find((owner, kept_id), share_of(request.scope))
    if found is None or found.entry.api != "chat":
        return None
    return Refusal(
        "not_found",
        f"The messages of {kept_id[:200]!r} aren't kept, only its answer: "
        f"GET {_PATH}/{kept_id[:200]}.",
        param="id",
    )


async def list_kept(request: HttpRequest) -> Response:
    """The client's own kept chats; those that failed have an `error`."""
    count = read_limit(request)
    newest_first = reads_newest_first(request, default=False)
    mailbox, owner = mailbox_of(request), owner_of(request)
    after = request.query_params.get("after")
    share = share_of(request.scope)
    entries = await mailbox.entries(
        owner, "chat", after, count + 1, share, newest_first=newest_first
    )
    data = [msgspec.Raw(_listed(*each)) for each in entries[:count]]
    ids = [entry.id for entry, _ in entries[:count]]
    listed = {
        "object": "list",
        "data": data,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": len(entries) > count,
    }
    return json_response(listed)


async def delete(request: HttpRequest) -> Response:
    """Delete a chat, whether it is complete or not."""
    name = name_of(request)
    mailbox = mailbox_of(request)
    found = await mailbox.find(name, share_of(request.scope))
    if found is None or found.entry.api != "chat" or not await mailbox.delete(name):
        raise not_found("kept chat completion", name[1])
    answer = {"id": name[1], "object": "chat.completion.deleted", "deleted": True}
    return json_response(answer)


def _with_status(entry: MailboxEntry, body: bytes) -> bytes:
    if not entry.pending:
        return body
    pending = msgspec.json.decode(body, type=PendingBody)
    return msgspec.json.encode(msgspec.structs.replace(pending, status=entry.status))


def _listed(entry: MailboxEntry, body: bytes) -> bytes:
    if entry.status != "failed":
        return _with_status(entry, body)
    failed = PendingBody(entry.id, int(entry.created_at), entry.model, status="failed")
    error = msgspec.json.decode(body, type=dict[str, msgspec.Raw])["error"]
    return msgspec.json.encode({**msgspec.structs.asdict(failed), "error": error})


_LIST: Final = Operation(summary="Chats that are kept", tag="OpenAI", answer=dict)
# The answer has the status that the chat itself would have had.
_RETRIEVE: Final = Operation(
    summary="A chat that is kept", tag="OpenAI", answer=dict, refusals=(*GENERATES, "not_found")
)
_DELETE: Final = Operation(
    summary="Delete a chat", tag="OpenAI", answer=dict, refusals=("not_found",)
)


kept_routes = [
    Described(_PATH, list_kept, _LIST),
    Described(f"{_PATH}/{{id:id}}", retrieve, _RETRIEVE),
    Described(f"{_PATH}/{{id:id}}", delete, _DELETE, method="DELETE"),
]
