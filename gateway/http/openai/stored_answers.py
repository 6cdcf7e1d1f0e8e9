"""Answers that the mailbox makes and stores: of chats and of responses. Routes of stored chats.
`gateway.mailbox.store` writes the answers to the mailbox's file.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from starlette.datastructures import MutableHeaders
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.http.generation.model_call import ModelCall, deadline_s
from gateway.http.openai.chat_writer import ChatForm, ChatFormat
from gateway.http.wire.access_log import note_usage
from gateway.http.wire.answer import COMMENT, STREAM_HEADERS, server_sent_event, until_gone
from gateway.http.wire.auth import caller_of, seat_of
from gateway.http.wire.bodies import json_listing, json_response, read_limit, reads_newest_first
from gateway.http.wire.errors import (
    CLIENT_LEFT,
    envelope,
    error_response,
    note_outcome,
    note_refusal,
)
from gateway.http.wire.openapi import GENERATES, Operation, Routes
from gateway.mailbox.entry import AnswerOutcome, Api, MailboxEntry, StoredAnswer, Work
from gateway.mailbox.jobs import AnswerJob
from gateway.mailbox.mailbox import Mailbox
from gateway.requests.choices import Format
from gateway.requests.request import REMINDER_S, Request
from gateway.requests.share import share_of
from gateway.system.refusal import Refusal
from protocol.requests import Generate

stored_chat_routes = Routes("OpenAI")

_KINDS: Final[dict[Api, str]] = {"chat": "kept chat completion", "responses": "stored response"}


def mailbox_of(request: HttpRequest) -> Mailbox:
    mailbox: Mailbox = request.app.state.mailbox
    return mailbox


def owner_of(request: HttpRequest) -> str:
    """The owner of this client's answers. Without API keys all clients are one owner."""
    return caller_of(request).owner


async def find_answer(
    request: HttpRequest, api: Api, *, items: bool = False, events: bool = False
) -> StoredAnswer:
    """The client's own answer with the id in the path.

    Raises:
        Refusal: there is no such answer, or it belongs to another API or key.
    """
    name = owner_of(request), request.path_params["id"]
    share = share_of(request.scope)
    answer = await mailbox_of(request).find(name, share, items=items, events=events)
    if answer is None or answer.entry.api != api:
        raise Refusal(
            "not_found",
            f"There is no {_KINDS[api]} {name[1][:200]!r}: it never existed, was deleted, has "
            "expired (mailbox.keep_s, mailbox.size), or belongs to another key.",
            param="id",
        )
    return answer


def _work_of(api: Api, requests: Sequence[Request], form: bytes) -> Work:
    """The work that the mailbox stores, from which it can make these requests again. The requests
    are for one or more answers to one prompt.
    """
    first = requests[0]
    task = first.task
    assert isinstance(task, Generate)
    # `whole`: a constraint that can only be enforced in part is refused. A client that fetches the
    # answer later would not get the header that names the parts that are not enforced.
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
        cut_is_incomplete=api == "responses",
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
) -> AnswerJob:
    """Have the mailbox make the answers to these requests, within X-Deadline-S or else
    mailbox.deadline_s.

    The API's family makes the writer of the answers from `form`. Clients get `body` until the
    answer is complete. With `streams` a client follows the events from the beginning.

    Raises:
        Refusal: X-Deadline-S can't be read, the mailbox's queue is full, the answer can't be
            written to the mailbox's file, its name is taken, or the gateway is ending.
    """
    work = _work_of(entry.api, requests, form)
    wait_s = deadline_s(call.http, call.fleet.settings.mailbox.deadline_s)
    entry.deadline_at = entry.created_at + wait_s
    mailbox, seat = mailbox_of(call.http), seat_of(call.http)
    return await mailbox.accept(entry, work, items, body, call.share, seat, streams=streams)


class Followed(Response):
    """The answer of a job of the mailbox. The job goes on without its client. A stream begins after
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
        await self.job.ended.wait()
        outcome = self.job.outcome
        if outcome is None or self.job.refusal is not None:
            await self._refused(scope, receive, send)
            return
        response = Response(outcome.body, outcome.http_status, media_type="application/json")
        await response(scope, receive, send)

    async def _write_stream(
        self, scope: Scope, receive: Receive, send: Send, more: asyncio.Event
    ) -> None:
        job = self.job
        started = False
        start = {"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS]}
        async for chunk in self._chunks(more):
            if not started:
                started = True
                await send(start)
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if not started and job.refusal is not None:
            await self._refused(scope, receive, send)
            return
        if not started:
            await send(start)
        last = b""
        if job.refusal is not None:
            note_refusal(scope, job.refusal)
            if job.outcome is None:
                # The job goes on, but this stream ends.
                last = b"event: error\n" + server_sent_event(envelope(job.refusal, scope["path"]))
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _chunks(self, more: asyncio.Event) -> AsyncIterator[bytes]:
        """The events as they come, and a comment from time to time while no event comes."""
        job, sent = self.job, self._after
        while not (job.over and sent >= len(job.events)):
            more.clear()
            if sent < len(job.events):
                new = job.events[sent:]
                sent += len(new)
                yield b"".join(new)
                continue
            try:
                async with asyncio.timeout(REMINDER_S):
                    await more.wait()
            except TimeoutError:
                yield COMMENT

    async def _refused(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.job.refusal is not None
        await error_response(self.job.refusal, scope["path"])(scope, receive, send)


_PATH = "/v1/chat/completions"
_RETRY_AFTER_S = 1
_MESSAGES = "/messages"


class PendingBody(Struct):
    """A chat completion that is not complete yet."""

    id: str
    created: int
    model: str
    object: str = "chat.completion"
    status: str = "in_progress"
    choices: list[Any] = []


class ChatFamily:
    def form(self, form: bytes, request: Request, first_number: int) -> Format:
        return ChatFormat(msgspec.json.decode(form, type=ChatForm), request)

    def failure(self, body: bytes, refusal: Refusal) -> AnswerOutcome:
        return AnswerOutcome("failed", refusal.status, envelope(refusal, _PATH))

    def cancellation(self, body: bytes) -> AnswerOutcome:
        # Only a deletion cancels a chat.
        return self.failure(body, Refusal("not_found", "The answer was deleted."))

    def first_events(self, body: bytes, number: int) -> bytes:
        return b""

    def last_event(self, outcome: AnswerOutcome, number: int) -> bytes:
        return b"event: error\n" + server_sent_event(outcome.body)


async def store_chat(
    call: ModelCall, requests: Sequence[Request], form: ChatForm, *, stream: bool
) -> Followed:
    """Have the mailbox make and store the answers, even if the client leaves.

    Raises:
        Refusal: X-Deadline-S can't be read, the answer can't be written to the mailbox's file, or
            its id is taken.
    """
    entry = new_entry(call, f"chatcmpl-{requests[0].id}", "chat")
    # The request waits in the model's queue, like those of other chats, not in the mailbox's.
    entry.status, entry.attempts = "in_progress", 1
    body = msgspec.json.encode(PendingBody(entry.id, form.created, form.model_id))
    job = await accept(call, entry, requests, msgspec.json.encode(form), body, streams=stream)
    return Followed(job, stream=stream, headers={"x-mailbox-id": entry.id})


@stored_chat_routes.get(
    f"{_PATH}/{{id:id}}",
    Operation("A chat that is kept", answer=dict, refusals=(*GENERATES, "not_found")),
)
async def retrieve(request: HttpRequest) -> Response:
    """Answer with a kept chat completion or the error that ended it; 202 until it has ended."""
    try:
        answer = await find_answer(request, "chat")
    except Refusal as refusal:
        raise await _no_messages(request) or refusal from None
    headers = {}
    if answer.entry.pending:
        headers["retry-after"] = str(_RETRY_AFTER_S)
    elif answer.http_status != 200:
        # Another try would get the same outcome.
        headers["x-should-retry"] = "false"
    body = _with_status(answer.entry, answer.body)
    return Response(
        body, status_code=answer.http_status, headers=headers, media_type="application/json"
    )


async def _no_messages(request: HttpRequest) -> Refusal | None:
    """The refusal for a client that asks for a chat's messages. None: the path names no chat."""
    asked: str = request.path_params["id"]
    chat_id = asked.removesuffix(_MESSAGES)
    if chat_id == asked:
        return None
    name = owner_of(request), chat_id
    answer = await mailbox_of(request).find(name, share_of(request.scope))
    if answer is None or answer.entry.api != "chat":
        return None
    return Refusal(
        "not_found",
        f"The messages of {chat_id[:200]!r} aren't kept, only its answer: "
        f"GET {_PATH}/{chat_id[:200]}.",
        param="id",
    )


@stored_chat_routes.get(_PATH, Operation("Chats that are kept", answer=dict))
async def list_chats(request: HttpRequest) -> Response:
    """List the client's own kept chats. Those that failed have an `error`."""
    count = read_limit(request)
    newest_first = reads_newest_first(request, default=False)
    mailbox, owner = mailbox_of(request), owner_of(request)
    after = request.query_params.get("after")
    share = share_of(request.scope)
    entries = await mailbox.entries(
        owner, "chat", after, count + 1, share, newest_first=newest_first
    )
    shown = entries[:count]
    return json_listing(
        [Raw(_listed(entry, body)) for entry, body in shown],
        [entry.id for entry, _ in shown],
        has_more=len(entries) > count,
    )


@stored_chat_routes.delete(
    f"{_PATH}/{{id:id}}", Operation("Delete a chat", answer=dict, refusals=("not_found",))
)
async def delete(request: HttpRequest) -> Response:
    """Delete a chat, whether it is complete or not."""
    entry = (await find_answer(request, "chat")).entry
    await mailbox_of(request).delete(entry.name)
    return json_response({"id": entry.id, "object": "chat.completion.deleted", "deleted": True})


def _with_status(entry: MailboxEntry, body: bytes) -> bytes:
    if not entry.pending:
        return body
    pending = msgspec.json.decode(body, type=PendingBody)
    return msgspec.json.encode(msgspec.structs.replace(pending, status=entry.status))


def _listed(entry: MailboxEntry, body: bytes) -> bytes:
    if entry.status != "failed":
        return _with_status(entry, body)
    failed = PendingBody(entry.id, int(entry.created_at), entry.model, status="failed")
    error = msgspec.json.decode(body, type=dict[str, Raw])["error"]
    return msgspec.json.encode({**msgspec.structs.asdict(failed), "error": error})
