"""What routes need to keep answers in the mailbox, and to give them out again."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from starlette.requests import Request as HttpRequest

from gateway.http.callers import caller_of, seat_of
from gateway.http.model_call import ModelCall, deadline_s
from gateway.mailbox.entry import Api, MailboxEntry, Name, Work
from gateway.mailbox.jobs import AnswerJob
from gateway.mailbox.mailbox import Mailbox
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


def work_of(requests: Sequence[Request], form: bytes, *, cut_is_incomplete: bool = False) -> Work:
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
    work: Work,
    body: bytes,
    *,
    items: bytes = b"",
    streams: bool = False,
) -> AnswerJob:
    """Have the mailbox make it, within X-Deadline-S or else mailbox.deadline_s. `body` is given out
    until then; with `streams` a client follows the events from now on.

    Raises:
        Refusal: the header can't be read, the mailbox's queue is full, it can't be written down, or
            its name is taken.
    """
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
