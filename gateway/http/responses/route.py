"""POST /v1/responses."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.answer import Answer
from gateway.http.bodies import beside_the_loop, read_json
from gateway.http.followed import Followed
from gateway.http.kept import accept, mailbox_of, new_entry, work_of
from gateway.http.model_call import ModelCall
from gateway.http.openapi.operation import EVENT_STREAM, GENERATES, Described, Operation
from gateway.http.responses import compact, count, stored, truncation
from gateway.http.responses.asked import Asked, build, gather
from gateway.http.responses.bodies import ResponseBody, check_body
from gateway.http.responses.echo import skeleton
from gateway.http.responses.items import encode_items
from gateway.http.responses.shape import ResponseObject
from gateway.http.responses.writer import Form, ResponseFormat
from gateway.mailbox.entry import AnswerOutcome, MailboxEntry
from gateway.mailbox.jobs import LOWEST_PRIORITY
from gateway.mailbox.mailbox import Mailbox
from gateway.models.compartment import Compartment
from gateway.requests.request import Request
from gateway.system.refusal import Refusal

logger = logging.getLogger(__name__)


async def create_response(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, ResponseBody)
    check_body(body)
    asked = await gather(http_request, body)
    call = asked.call
    cut = await _cut(asked) if body.truncation == "auto" else 0
    generation = body.generation()
    if body.background and body.priority is None:
        generation.priority = LOWEST_PRIORITY
    requests = call.requests(generation, [await build(asked, cut)], "input")
    form = Form(
        skeleton(body, call.model.id, asked.response_id),
        body.seals_reasoning,
        temperature=body.temperature,
        top_p=body.top_p,
        meanings=asked.meanings,
        compacts=asked.compacts,
    )
    # What was dropped isn't there for the next one, which would have to drop it again.
    kept = [asked.items[each] for each in truncation.kept(asked.items, cut)]
    size = call.share.size_bytes
    items = await beside_the_loop(size, encode_items, kept) if body.stored else b""
    entry = new_entry(call, asked.response_id, "responses")
    if body.background:
        return await _in_background(call, requests, form, entry, items, stream=bool(body.stream))
    mailbox = mailbox_of(http_request)
    # What can't be stored is answered all the same.
    form.response.store = body.stored and mailbox.trouble is None
    call.fleet.submit(call.compartment, *requests)
    return _Answer(
        call.compartment,
        requests,
        ResponseFormat(form, requests[0]),
        mailbox,
        entry if form.response.store else None,
        items,
        stream=bool(body.stream),
        headers=asked.headers,
    )


async def _cut(asked: Asked) -> int:
    """How many of the first items go, so that the rest fits the model's context."""
    if asked.body.background:
        raise Refusal(
            "invalid_request_error",
            "truncation: auto can't be combined with background.",
            param="truncation",
        )
    terms = asked.call.terms(asked.body.priority, None, {})
    cuts = truncation.cuts(asked.items)
    return await truncation.first_that_fits(
        asked.call, terms, functools.partial(build, asked), cuts
    )


class _Answer(Answer):
    """Stored, if there is an `entry`, before its client learns that it is there."""

    def __init__(
        self,
        compartment: Compartment,
        requests: Sequence[Request],
        form: ResponseFormat,
        mailbox: Mailbox,
        entry: MailboxEntry | None,
        items: bytes,
        *,
        stream: bool,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(compartment, requests, form, stream=stream, headers=headers)
        self._response = form
        self._mailbox = mailbox
        self._entry = entry
        self._items = items

    async def complete(self) -> None:
        if self._entry is None:
            return
        self._entry.status = self._response.status
        self._entry.ended_at = time.time()
        outcome = AnswerOutcome(self._entry.status, 200, self._response.body)
        try:
            await self._mailbox.put(self._entry, outcome, self._items)
        except Refusal as refusal:
            logger.warning("%s is not stored: %s", self._entry.id, refusal.message)

    def failure(self, refusal: Refusal, path: str) -> bytes:
        return self._response.failed(refusal)


async def _in_background(
    call: ModelCall,
    requests: Sequence[Request],
    form: Form,
    entry: MailboxEntry,
    items: bytes,
    *,
    stream: bool,
) -> Response:
    entry.priority = requests[0].terms.priority or 0
    entry.background, entry.streams = True, stream
    form.response.background, form.response.status = True, "queued"
    work = work_of(requests, form.encode(), cut_is_incomplete=True)
    queued = msgspec.json.encode(form.response)
    job = await accept(call, entry, work, queued, items=items)
    if stream:
        mailbox_of(call.http).maker.open(job, queued)
        return Followed(job, stream=True)
    return Response(queued, media_type="application/json")


_CREATE: Final = Operation(
    summary="Answer, and keep the answer",
    tag="OpenAI",
    body=ResponseBody,
    answer=ResponseObject,
    stream=EVENT_STREAM,
    refusals=(*GENERATES, "not_found"),
)

routes = [
    Described("/v1/responses", create_response, _CREATE, method="POST"),
    *compact.routes,
    *count.routes,
    *stored.routes,
]
