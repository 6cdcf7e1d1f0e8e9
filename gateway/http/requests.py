"""GET /admin/v1/requests: what runs and what waits, of all models."""

from __future__ import annotations

from itertools import chain, islice
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.openapi.operation import Described, Operation
from gateway.models.fleet import Fleet
from gateway.requests.request import Request

State: TypeAlias = Literal["running", "parked", "waiting"]


class RequestStatus(Struct):
    """`place` is 1 for the one of its model that starts next, and null for one that runs. A parked
    one ran already, in a worker that is gone. `age_s` counts from its arrival. `key` is the name
    of its API key, null without keys. `prompt_tokens` are 0 until they are counted. What asks for
    several answers is as many requests, all with its id.
    """

    id: str
    model: str
    key: str | None
    state: State
    place: int | None
    age_s: float
    prompt_tokens: int
    delivered_tokens: int


class RequestList(Struct):
    """For each model those that run, oldest first, then those that wait, in their order."""

    requests: list[RequestStatus]


async def requests(request: HttpRequest) -> Response:
    found = RequestList(request_statuses(request.app.state.fleet))
    return Response(msgspec.json.encode(found), media_type="application/json")


def request_statuses(fleet: Fleet, most: int | None = None) -> list[RequestStatus]:
    """Of all requests, or of the first so many of each model."""
    now = fleet.now()
    each_model = (
        (
            _status(request, place, compartment.model.id, now)
            for place, request in islice(compartment.traffic.places, most)
        )
        for compartment in fleet.roster.everyone
    )
    return list(chain.from_iterable(each_model))


def _status(request: Request, place: int | None, model_id: str, now: float) -> RequestStatus:
    progress = request.progress
    state: State = "parked" if progress.begun else "waiting"
    return RequestStatus(
        id=request.id,
        model=model_id,
        key=request.terms.key,
        state="running" if place is None else state,
        place=place,
        age_s=max(0.0, now - request.arrived_at),
        prompt_tokens=progress.prompt_tokens,
        delivered_tokens=len(progress.delivered),
    )


_REQUESTS: Final = Operation(summary="What runs and waits", tag="operation", answer=RequestList)

routes = [Described("/requests", requests, _REQUESTS)]
