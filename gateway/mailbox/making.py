"""One answer of the mailbox, from a model's queue to its end."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

import msgspec

from gateway.access.caller import ANYBODY
from gateway.mailbox.entry import Outcome, Work
from gateway.mailbox.family import Family
from gateway.mailbox.job import Job
from gateway.models.choices import Choices, answers_to, pieces
from gateway.models.fleet import Fleet
from gateway.requests.request import Terms

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
    terms = Terms(
        id=work.request_id,
        key=job.entry.key,
        deadline_s=max(_LEAST_S, job.entry.deadline_at - now),
        priority=work.priority,
        keep_alive_s=work.keep_alive_s,
        params=work.params,
    )
    requests = answers_to(work.task, work.answers, terms, fleet.now())
    fleet.submit(compartment, *requests)
    job.begun(compartment, requests)
    form = family.form(work.form, requests[0], job.next_number)
    choices = Choices(requests, form, len(requests))
    try:
        async with aclosing(pieces(requests)) as arriving:
            async for index, piece in arriving:
                if piece.idle:
                    continue
                choices.keep(index, piece)
                if job.streams:
                    job.record(choices.write(index, piece))
    finally:
        job.release()
    closing = choices.closing() if job.streams else b""
    incomplete = work.cut_is_incomplete and choices.cut
    outcome = Outcome("incomplete" if incomplete else "completed", 200, choices.whole())
    return Made(outcome, closing)
