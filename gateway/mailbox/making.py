"""One answer of the mailbox, from a model's queue to its end."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

import msgspec

from gateway.access.caller import ANYBODY
from gateway.http.answer import Choice
from gateway.http.sampling import another_answer
from gateway.mailbox.entry import Outcome, Status, Work
from gateway.mailbox.family import Family
from gateway.mailbox.job import Job
from gateway.models.choices import pieces, submit_all, usage_of
from gateway.models.fleet import Fleet
from gateway.requests.request import Request
from protocol.answers import FinishReason
from protocol.parts import AnswerPart, merged

# Who is too late hears that from the queue.
_LEAST_S: Final = 0.001


class Made(msgspec.Struct, frozen=True):
    """A whole answer; `closing` are the last events of its stream."""

    outcome: Outcome
    closing: bytes


async def make(job: Job, work: Work, fleet: Fleet, family: Family, now: float) -> Made:
    """Have it made. `now` is a Unix time.

    Raises:
        Refusal: it ends here; `job.requests` are empty if it wasn't even taken.
        ClientGoneError: it was cancelled.
    """
    # Who asked for it was allowed to.
    compartment = fleet.roster.find(job.entry.model, ANYBODY)
    requests = [
        Request(
            another_answer(work.task, f"{work.task.request_id}.{index}", index),
            fleet.now(),
            max(_LEAST_S, job.entry.deadline_at - now),
            request_id=work.request_id,
            key=job.entry.key,
            repeats_prompt=index > 0,
            priority=work.priority,
            keep_alive_s=work.keep_alive_s,
            params=work.params,
        )
        for index in range(work.answers)
    ]
    submit_all(fleet, compartment, requests)
    job.begun(compartment, requests)
    form = family.form(work.form, requests[0], job.next_number)
    unopened = set(range(len(requests)))
    found: list[list[AnswerPart]] = [[] for _ in requests]
    reasons: list[FinishReason] = ["stop" for _ in requests]
    try:
        async with aclosing(pieces(requests)) as arriving:
            async for index, piece in arriving:
                if piece.idle:
                    continue
                found[index] += piece.parts
                if piece.finish_reason is not None:
                    reasons[index] = piece.finish_reason
                if not job.streams:
                    continue
                opening = form.opening(index) if index in unopened else b""
                unopened.discard(index)
                job.record(opening + form.piece(index, piece))
    finally:
        job.release()
    usage = usage_of([each.usage for each in requests if each.usage is not None], len(requests))
    closing = form.closing(usage) if job.streams else b""
    choices = [Choice(merged(parts), reasons[index]) for index, parts in enumerate(found)]
    body = form.whole(choices, usage)
    status: Status = "completed"
    if work.cut_is_incomplete and "length" in reasons:
        status = "incomplete"
    return Made(Outcome(status, 200, body), closing)
