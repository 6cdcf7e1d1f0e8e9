"""POST /v1/responses."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.answer import Answer
from gateway.http.bodies import beside_the_loop, read_json
from gateway.http.callers import caller_of, seat_of
from gateway.http.followed import Followed
from gateway.http.kept import mailbox_of, owner_of, work_of
from gateway.http.openapi.operation import EVENT_STREAM, GENERATES, Described, Operation
from gateway.http.responses import compact, count, stored, truncation
from gateway.http.responses.asked import gather, generate_of
from gateway.http.responses.bodies import ResponseBody, check_body
from gateway.http.responses.echo import skeleton
from gateway.http.responses.items import encode_items
from gateway.http.responses.shape import ResponseObject, new_id
from gateway.http.responses.writer import Form, ResponseFormat
from gateway.http.sampling import deadline_s, new_requests
from gateway.http.supported import check_supported
from gateway.mailbox.entry import Entry, Outcome
from gateway.mailbox.mailbox import Mailbox
from gateway.mailbox.queue import LOWEST_PRIORITY
from gateway.models.choices import submit_all
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet
from gateway.requests.request import Request
from gateway.requests.share import share_of
from gateway.system.refusal import Refusal
from protocol.requests import Generate

logger = logging.getLogger(__name__)


async def create_response(request: HttpRequest) -> Response:
    fleet: Fleet = request.app.state.fleet
    body = await read_json(request, ResponseBody)
    check_supported(body, "responses")
    check_body(body)
    compartment = fleet.roster.find(body.model, caller_of(request))
    response_id = new_id()
    asked = await gather(request, fleet, compartment, body, response_id)
    size = share_of(request.scope).size_bytes

    async def build(cut: int) -> Generate:
        return await beside_the_loop(size, generate_of, asked, compartment, cut)

    cut = 0
    if body.truncation == "auto":
        if body.background:
            raise Refusal(
                "invalid_request_error",
                "truncation: auto can't be combined with background.",
                param="truncation",
            )
        cuts = truncation.cuts(asked.items)
        cut = await truncation.first_that_fits(request, fleet, compartment, build, cuts)
    generate = await build(cut)
    requests = new_requests(request, fleet, body.generation(), [generate], "input")
    for each in requests:
        each.params = {**each.params, "constraint": "text.format"}
    form = Form(
        skeleton(body, compartment.model.id, response_id),
        body.seals_reasoning,
        temperature=body.temperature,
        top_p=body.top_p,
        meanings=asked.meanings,
        compacts=asked.compacts,
    )
    # What was dropped isn't there for the next one, which would have to drop it again.
    kept = [asked.items[each] for each in truncation.kept(asked.items, cut)]
    items = await beside_the_loop(size, encode_items, kept) if body.stored else b""
    if body.background:
        return await _in_background(request, fleet, requests, form, items, body)
    mailbox = mailbox_of(request)
    # What can't be stored is answered all the same.
    form.response.store = body.stored and mailbox.trouble is None
    submit_all(fleet, compartment, requests)
    return _Answer(
        compartment,
        requests,
        ResponseFormat(form, requests[0]),
        mailbox,
        _entry(request, form) if form.response.store else None,
        items,
        stream=bool(body.stream),
        headers=asked.headers,
    )


class _Answer(Answer):
    """Stored, if there is an `entry`, before its client learns that it is there."""

    def __init__(
        self,
        compartment: Compartment,
        requests: Sequence[Request],
        form: ResponseFormat,
        mailbox: Mailbox,
        entry: Entry | None,
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
        outcome = Outcome(self._entry.status, 200, self._response.body)
        try:
            await self._mailbox.put(self._entry, outcome, self._items)
        except Refusal as refusal:
            logger.warning("%s is not stored: %s", self._entry.id, refusal.message)

    def failure(self, refusal: Refusal, path: str) -> bytes:
        return self._response.failed(refusal)


async def _in_background(
    request: HttpRequest,
    fleet: Fleet,
    requests: Sequence[Request],
    form: Form,
    items: bytes,
    body: ResponseBody,
) -> Response:
    entry = _entry(request, form)
    (first,) = requests
    if body.priority is None and "x-priority" not in request.headers:
        first.priority = LOWEST_PRIORITY
    entry.priority = 0 if first.priority is None else first.priority
    entry.background, entry.streams = True, bool(body.stream)
    wait_s = deadline_s(request, fleet.settings.mailbox.deadline_s)
    entry.deadline_at = entry.created_at + wait_s
    form.response.background, form.response.status = True, "queued"
    work = work_of(requests, form.encode(), cut_is_incomplete=True)
    queued = msgspec.json.encode(form.response)
    share = share_of(request.scope)
    mailbox = mailbox_of(request)
    job = await mailbox.accept(entry, work, items, queued, share, seat_of(request))
    if body.stream:
        mailbox.open(job, queued)
        return Followed(job, stream=True)
    return Response(queued, media_type="application/json")


def _entry(request: HttpRequest, form: Form) -> Entry:
    response = form.response
    return Entry(
        owner=owner_of(request),
        id=response.id,
        api="responses",
        model=response.model,
        status="queued",
        created_at=time.time(),
    )


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
