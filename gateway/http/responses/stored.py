"""What is done with a response by its id: retrieved, followed, cancelled, deleted."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.answer import STREAM_HEADERS
from gateway.http.bodies import beside_the_loop, read_count
from gateway.http.followed import Followed
from gateway.http.kept import mailbox_of, name_of, not_found
from gateway.http.openapi.operation import EVENT_STREAM, Described, Operation
from gateway.http.queries import read_flag, read_limit, reads_newest_first
from gateway.http.responses.items import decode_items
from gateway.http.responses.shape import ResponseObject, decode
from gateway.mailbox.entry import StoredAnswer
from gateway.mailbox.jobs import split
from gateway.requests.share import share_of
from gateway.system.refusal import Refusal

_PATH: Final = "/v1/responses/{id}"
_NUMBER: Final = re.compile(rb'"sequence_number":([0-9]+)')


async def retrieve(request: HttpRequest) -> Response:
    """As it is by now; with `stream=true` its events, behind the one numbered `starting_after`."""
    streams = read_flag(request, "stream")
    found = await _find(request, events=streams)
    if streams:
        return _events(request, found)
    return Response(_present(found), media_type="application/json")


async def input_items(request: HttpRequest) -> Response:
    """All that it answers, those of the responses before it among them."""
    count = read_limit(request)
    newest_first = reads_newest_first(request, default=True)
    found = await _find(request, items=True)
    share = share_of(request.scope)
    items = await beside_the_loop(len(found.items), decode_items, found.items, share)
    if newest_first:
        items.reverse()
    if (after := request.query_params.get("after")) is not None:
        places = [place for place, each in enumerate(items) if each.id == after]
        if not places:
            raise Refusal(
                "invalid_request_error",
                f"after: there is no item {after[:100]!r} in this response.",
                param="after",
            )
        items = items[places[0] + 1 :]
    page = items[:count]
    listed = {
        "object": "list",
        "data": page,
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
        "has_more": len(items) > count,
    }
    return Response(msgspec.json.encode(listed), media_type="application/json")


async def cancel(request: HttpRequest) -> Response:
    """A background response that isn't there yet; one that is stays as it is."""
    found = await _find(request)
    if not found.entry.background:
        raise Refusal(
            "invalid_request_error",
            f"{found.entry.id!r} is complete and was not made in the background: only a "
            "background response can be cancelled.",
            param="id",
        )
    await mailbox_of(request).cancel(found.entry.name)
    return Response(_present(await _find(request)), media_type="application/json")


async def delete(request: HttpRequest) -> Response:
    """Whether it is there already or on its way."""
    found = await _find(request)
    await mailbox_of(request).delete(found.entry.name)
    answer = {"id": found.entry.id, "object": "response", "deleted": True}
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def _find(request: HttpRequest, *, items: bool = False, events: bool = False) -> StoredAnswer:
    """Raises: Refusal: it isn't there, or is another's."""
    name = name_of(request)
    share = share_of(request.scope)
    found = await mailbox_of(request).find(name, share, items=items, events=events)
    if found is None or found.entry.api != "responses":
        raise not_found("stored response", name[1])
    return found


def _present(found: StoredAnswer) -> bytes:
    """What isn't there yet is stored as it was accepted."""
    if not found.entry.pending:
        return found.body
    response = decode(found.body)
    response.status = found.entry.status
    return msgspec.json.encode(response)


def _events(request: HttpRequest, found: StoredAnswer) -> Response:
    if not found.entry.streams:
        raise Refusal(
            "invalid_request_error",
            "stream: only a background response that was created with stream: true can be "
            "followed.",
            param="stream",
        )
    after = read_count(request, "starting_after", -1)
    mailbox = mailbox_of(request)
    if (job := mailbox.maker.job(found.entry.name)) is not None:
        mailbox.maker.open(job, found.body)
        return Followed(job, stream=True, after=_passed(after, job.first_number))
    events = split(found.events)
    numbered = _NUMBER.search(events[0]) if events else None
    begin = int(numbered[1]) if numbered else 0
    rest = b"".join(events[_passed(after, begin) :])
    headers = {name.decode(): value.decode() for name, value in STREAM_HEADERS}
    return Response(rest, headers=headers)


def _passed(after: int, first_number: int) -> int:
    """How many of these events its client has: none, if its own are of an earlier attempt."""
    return max(0, after + 1 - first_number)


_STORED: Final = Operation(summary="", tag="OpenAI", refusals=("not_found", "model_unavailable"))
_RETRIEVE: Final = msgspec.structs.replace(
    _STORED, summary="A stored response", answer=ResponseObject, stream=EVENT_STREAM
)
_CANCEL: Final = msgspec.structs.replace(
    _STORED, summary="Cancel a response", answer=ResponseObject
)
_DELETE: Final = msgspec.structs.replace(_STORED, summary="Delete a response", answer=dict)
_ITEMS: Final = msgspec.structs.replace(_STORED, summary="What was asked", answer=dict)

routes = [
    Described(_PATH, retrieve, _RETRIEVE),
    Described(_PATH, delete, _DELETE, method="DELETE"),
    Described(f"{_PATH}/cancel", cancel, _CANCEL, method="POST"),
    Described(f"{_PATH}/input_items", input_items, _ITEMS),
]
