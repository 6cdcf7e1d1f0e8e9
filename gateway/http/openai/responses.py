"""The routes of /v1/responses: create, compact, count, and the routes for stored responses."""

from __future__ import annotations

import functools
import logging
import re
import time
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.generation.model_call import ModelCall
from gateway.http.generation.text_request import counting, request_text
from gateway.http.openai.diagnostics import Unavailable, diagnose
from gateway.http.openai.responses_bodies import ResponseBody, check_body
from gateway.http.openai.responses_input import (
    cut_that_fits,
    draft,
    gather,
    places_after,
)
from gateway.http.openai.responses_items import ItemBody, decode_items
from gateway.http.openai.responses_objects import (
    ResponseErrorBody,
    ResponseObject,
    ResponseUsage,
    decode,
    skeleton,
)
from gateway.http.openai.responses_writer import ResponseForm, ResponseFormat, lifecycle_event
from gateway.http.openai.stored_answers import Followed, accept, find_answer, mailbox_of, new_entry
from gateway.http.passing.pass_on import passing
from gateway.http.wire.answer import DONE, EVENTS, STREAM_HEADERS, CountFormat
from gateway.http.wire.bodies import (
    beside_the_loop,
    json_listing,
    json_response,
    read_count,
    read_flag,
    read_json,
    read_limit,
    reads_newest_first,
)
from gateway.http.wire.errors import invalid
from gateway.http.wire.openapi import EVENT_STREAM, GENERATES, Operation, Routes
from gateway.mailbox.entry import AnswerOutcome, MailboxEntry, Status, StoredAnswer
from gateway.mailbox.jobs import split
from gateway.mailbox.mailbox import Mailbox
from gateway.requests.choices import Choice, Format
from gateway.requests.request import Request
from gateway.requests.share import share_of
from gateway.system.refusal import Code, Refusal
from protocol.answers import Usage

routes = Routes("OpenAI")

# The further refusals of routes for stored responses, and of routes that may continue one.
_STORED: Final[tuple[Code, ...]] = ("not_found", "model_unavailable")
_GENERATES: Final[tuple[Code, ...]] = (*GENERATES, "not_found")
_PATH: Final = "/v1/responses/{id}"
_NUMBER: Final = re.compile(rb'"sequence_number":([0-9]+)')


@routes.get(
    _PATH,
    Operation("A stored response", answer=ResponseObject, stream=EVENT_STREAM, refusals=_STORED),
)
async def retrieve(request: HttpRequest) -> Response:
    """Answer with a stored response as it is now. With `stream=true` send the events of the
    response after the event number `starting_after`.
    """
    streams = read_flag(request, "stream")
    answer = await find_answer(request, "responses", events=streams)
    if streams:
        return _events(request, answer)
    return Response(_present(answer), media_type="application/json")


@routes.get(
    f"{_PATH}/input_items",
    Operation("The input of a response", answer=dict, refusals=_STORED),
)
async def input_items(request: HttpRequest) -> Response:
    """List the input items of a stored response, with the items of the responses before it."""
    count = read_limit(request)
    newest_first = reads_newest_first(request, default=True)
    answer = await find_answer(request, "responses", items=True)
    share = share_of(request.scope)
    items = await beside_the_loop(len(answer.items), decode_items, answer.items, share)
    if newest_first:
        items.reverse()
    if (after := request.query_params.get("after")) is not None:
        places = [place for place, item in enumerate(items) if item.id == after]
        if not places:
            raise invalid(f"after: there is no item {after[:100]!r} in this response.", "after")
        items = items[places[0] + 1 :]
    page = items[:count]
    return json_listing(page, [item_body.id for item_body in page], has_more=len(items) > count)


@routes.post(
    f"{_PATH}/cancel",
    Operation("Cancel a response", answer=ResponseObject, refusals=_STORED, counts=False),
)
async def cancel(request: HttpRequest) -> Response:
    """Cancel a background response. A response that is complete stays as it is."""
    answer = await find_answer(request, "responses")
    if not answer.entry.background:
        raise invalid(
            f"{answer.entry.id!r} was not made in the background: only a background response can "
            "be cancelled.",
            "id",
        )
    await mailbox_of(request).cancel(answer.entry.name)
    return Response(
        _present(await find_answer(request, "responses")), media_type="application/json"
    )


@routes.delete(_PATH, Operation("Delete a response", answer=dict, refusals=_STORED))
async def delete(request: HttpRequest) -> Response:
    """Delete a stored response, whether it is complete or not."""
    answer = await find_answer(request, "responses")
    await mailbox_of(request).delete(answer.entry.name)
    return json_response({"id": answer.entry.id, "object": "response", "deleted": True})


def _present(answer: StoredAnswer) -> bytes:
    """The response as it is now, in JSON. For a pending response the mailbox has the JSON of the
    time when it was accepted, so the status is filled in.
    """
    if not answer.entry.pending:
        return answer.body
    response = decode(answer.body)
    response.status = answer.entry.status
    return msgspec.json.encode(response)


def _events(request: HttpRequest, answer: StoredAnswer) -> Response:
    if not answer.entry.streams:
        raise invalid(
            "stream: only a background response that was created with stream: true can be "
            "followed.",
            "stream",
        )
    after = read_count(request, "starting_after", -1)
    mailbox = mailbox_of(request)
    if (job := mailbox.maker.job(answer.entry.name)) is not None:
        mailbox.maker.open(job, answer.body)
        return Followed(job, stream=True, after=_passed(after, job.first_number))
    events = split(answer.events)
    numbered = _NUMBER.search(events[0]) if events else None
    begin = int(numbered[1]) if numbered else 0
    rest = b"".join(events[_passed(after, begin) :])
    headers = {name.decode(): value.decode() for name, value in STREAM_HEADERS}
    return Response(rest, headers=headers)


def _passed(after: int, first_number: int) -> int:
    """How many events from `first_number` on the client has, if it has all up to `after`. 0: the
    client has read only events of an earlier attempt.
    """
    return max(0, after + 1 - first_number)


class ResponseFamily:
    def form(self, form: bytes, request: Request, first_number: int) -> Format:
        options = msgspec.json.decode(form, type=ResponseForm)
        return ResponseFormat(options, request, first_number=first_number, announced=True)

    def failure(self, body: bytes, refusal: Refusal) -> AnswerOutcome:
        response = decode(body)
        response.error = ResponseErrorBody.of(refusal)
        return _ended(response, "failed")

    def cancellation(self, body: bytes) -> AnswerOutcome:
        return _ended(decode(body), "cancelled")

    def first_events(self, body: bytes, number: int) -> bytes:
        return lifecycle_event("created", body, number) + lifecycle_event(
            "queued", body, number + 1
        )

    def last_event(self, outcome: AnswerOutcome, number: int) -> bytes:
        # OpenAI has no event for a cancelled response, so the stream ends as incomplete.
        state = "failed" if outcome.status == "failed" else "incomplete"
        return lifecycle_event(state, outcome.body, number) + DONE


def _ended(response: ResponseObject, status: Status) -> AnswerOutcome:
    response.status = status
    return AnswerOutcome(status, 200, msgspec.json.encode(response))


class Compacted(Struct):
    """`output` is the input for the next response: the messages of users and of the system, then
    the summary.
    """

    id: str
    created_at: int
    output: list[Any]
    usage: ResponseUsage
    object: Literal["response.compaction"] = "response.compaction"


@routes.post(
    "/v1/responses/compact",
    Operation("Sum up a conversation", body=ResponseBody, answer=Compacted, refusals=_GENERATES),
)
@passing
async def compact(http_request: HttpRequest) -> Response:
    """Answer with a summary of the conversation. Nothing is stored."""
    body = await read_json(http_request, ResponseBody)
    asked = await gather(http_request, body)
    body, call = asked.body, asked.call
    messages = [item for item in asked.items if item.kind == "message" and item.role != "assistant"]
    asked.items.append(ItemBody(type="compaction_trigger"))
    asked.names.append("input")
    request = await request_text(call, functools.partial(draft, asked, 0), "input")
    form = ResponseForm(skeleton(body, call.model.id, asked.response_id), False, compacts=True)
    stays = await call.beside_the_loop(msgspec.json.encode, messages)
    return request.submit(_CompactionFormat(form, request.requests[0], stays))


class _CompactionFormat(ResponseFormat):
    def __init__(self, form: ResponseForm, request: Request, stays: bytes) -> None:
        """`stays` are the items that stay beside the summary, as JSON."""
        super().__init__(form, request)
        self._stays = stays

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        super().whole(choices, usage)
        response = self._response
        output = [*msgspec.json.decode(self._stays, type=list[Raw]), *response.output]
        return msgspec.json.encode(
            Compacted(response.id, response.created_at, output, ResponseUsage.of(usage))
        )


class InputTokens(Struct):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


@routes.post(
    "/v1/responses/input_tokens",
    Operation(
        "Count the tokens of a response's prompt",
        body=ResponseBody,
        answer=InputTokens,
        refusals=_GENERATES,
    ),
)
@passing
async def count(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, ResponseBody)
    asked = await gather(http_request, body)
    request = await request_text(
        asked.call, lambda model: counting(draft(asked, 0, model)), "input"
    )
    return request.submit(
        CountFormat(lambda usage: msgspec.json.encode(InputTokens(usage.prompt_tokens)))
    )


logger = logging.getLogger(__name__)


@routes.post(
    "/v1/responses",
    Operation(
        "Answer, and keep the answer",
        body=ResponseBody,
        answer=ResponseObject,
        stream=EVENT_STREAM,
        refusals=_GENERATES,
    ),
)
@passing
async def create_response(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, ResponseBody)
    check_body(body)
    asked = await gather(http_request, body)
    body, call = asked.body, asked.call
    cut = await cut_that_fits(asked) if body.truncation == "auto" else 0
    request = await request_text(
        call, functools.partial(draft, asked, cut), "input", asked.response_id
    )
    requests = request.requests
    form = ResponseForm(
        skeleton(body, call.model.id, asked.response_id),
        body.seals_reasoning,
        temperature=body.temperature,
        top_p=body.top_p,
        meanings=asked.meanings,
        compacts=asked.compacts,
        prewarms=body.prewarms,
    )
    # Dropped items are not stored, since the next response would have to drop them again.
    stays = [asked.items[place] for place in places_after(asked.items, cut)]
    items = await call.beside_the_loop(msgspec.json.encode, stays) if body.stored else b""
    entry = new_entry(call, asked.response_id, "responses")
    if body.background:
        if body.compares is not None:
            # Another gateway may end the answer, and remembers nothing of this one's requests.
            form.response.prompt_cache_diagnostics = Unavailable()
        return await _in_background(call, requests, form, entry, items, stream=bool(body.stream))
    mailbox = mailbox_of(http_request)
    # If the mailbox can't store the response, the client still gets the answer.
    form.response.store = body.stored and mailbox.trouble is None
    compares = body.compares
    diagnosed = None if compares is None else functools.partial(diagnose, request, compares)
    writer = ResponseFormat(form, requests[0], diagnose=diagnosed)
    return request.submit(
        writer,
        stream=bool(body.stream),
        framing=msgspec.structs.replace(EVENTS, failure=lambda refusal, _: writer.failed(refusal)),
        complete=functools.partial(_store, mailbox, entry, items, writer)
        if form.response.store
        else None,
    )


async def _store(
    mailbox: Mailbox, entry: MailboxEntry, items: bytes, writer: ResponseFormat
) -> None:
    """Store the whole answer, before the client gets the end of the answer."""
    entry.status, entry.ended_at = writer.status, time.time()
    try:
        await mailbox.put(entry, AnswerOutcome(entry.status, 200, writer.body), items)
    except Refusal as refusal:
        logger.warning("%s is not stored: %s", entry.id, refusal.message)


async def _in_background(
    call: ModelCall,
    requests: Sequence[Request],
    form: ResponseForm,
    entry: MailboxEntry,
    items: bytes,
    *,
    stream: bool,
) -> Response:
    entry.priority = requests[0].terms.priority or 0
    entry.background, entry.streams = True, stream
    form.response.background, form.response.status = True, "queued"
    queued = msgspec.json.encode(form.response)
    job = await accept(call, entry, requests, msgspec.json.encode(form), queued, items=items)
    if stream:
        mailbox_of(call.http).maker.open(job, queued)
        return Followed(job, stream=True)
    return Response(queued, media_type="application/json")
