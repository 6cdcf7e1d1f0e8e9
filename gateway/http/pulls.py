"""/admin/v1/pulls: getting models from the hub, with progress as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.http.bodies import read_json
from gateway.http.openapi.operation import EVENT_STREAM, Described, Operation, Query
from gateway.library.pulls import Pull, Pulls, PullStatus
from gateway.models.fleet import Fleet

_COMMENT_S: Final = 10.0
_COMMENT: Final = b": nothing new\n\n"


class Wanted(Struct, forbid_unknown_fields=True):
    """`model` is OWNER/NAME or OWNER/NAME:QUANT; with `force` also what will not fit is pulled."""

    model: str
    force: bool = False


class PullList(Struct):
    pulls: list[PullStatus]


async def begin(request: Request) -> Response:
    """202; who asks for what is being pulled already joins that."""
    wanted = await read_json(request, Wanted)
    fleet: Fleet = request.app.state.fleet
    fleet.check_serves()
    return _json(_pulls(request).begin(wanted.model, force=wanted.force).status, 202)


async def list_pulls(request: Request) -> Response:
    """Those that run, and the last that have ended."""
    return _json(PullList(_pulls(request).statuses))


async def follow(request: Request) -> Response:
    """An event for each change, until it is over; `follow=0` answers once, in JSON."""
    pull = _pulls(request).find(request.path_params["pull_id"])
    if request.query_params.get("follow", "1") in ("0", "false"):
        return _json(pull.status)
    return StreamingResponse(
        _changes(pull),
        media_type="text/event-stream",
        headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
    )


async def cancel(request: Request) -> Response:
    """Answers when its process is gone. What it has got is kept for another time."""
    pull = _pulls(request).find(request.path_params["pull_id"])
    await _pulls(request).cancel(pull)
    return _json(pull.status)


async def _changes(pull: Pull) -> AsyncIterator[bytes]:
    while True:
        told = pull.status
        yield b"event: pull\ndata: %s\n\n" % msgspec.json.encode(told)
        if told.over:
            return
        while pull.status is told:
            try:
                async with asyncio.timeout(_COMMENT_S):
                    await pull.next_change()
            except TimeoutError:
                yield _COMMENT


def _pulls(request: Request) -> Pulls:
    pulls: Pulls = request.app.state.pulls
    return pulls


def _json(body: Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


_LIST: Final = Operation(summary="What is pulled", tag="operation", answer=PullList)
_BEGIN: Final = Operation(
    summary="Get a model from the hub",
    tag="operation",
    body=Wanted,
    others={202: PullStatus},
    refusals=("queue_full", "shutting_down"),
)
_FOLLOW: Final = Operation(
    summary="The progress of a pull",
    tag="operation",
    answer=PullStatus,
    events=PullStatus,
    stream=EVENT_STREAM,
    query=(Query("follow", "string", "0: answer once, in JSON"),),
    refusals=("not_found",),
)
_CANCEL: Final = Operation(
    summary="Cancel a pull", tag="operation", answer=PullStatus, refusals=("not_found",)
)

routes = [
    Described("/pulls", list_pulls, _LIST),
    Described("/pulls", begin, _BEGIN, method="POST"),
    Described("/pulls/{pull_id}", follow, _FOLLOW),
    Described("/pulls/{pull_id}", cancel, _CANCEL, method="DELETE"),
]
