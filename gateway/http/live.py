"""GET /admin/v1/live: all that the page shows, in one stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.http.events import event_message, events_since, follows
from gateway.http.openapi.operation import EVENT_STREAM, Described, Operation, Query
from gateway.http.requests import RequestStatus, request_statuses
from gateway.http.status import Status, gateway_status
from gateway.models.fleet import Fleet
from gateway.models.reload import Reloader
from gateway.system.events import EventLog

# Tokens a second and ages move all the time; nobody sees more than so much of it.
_EVERY_S: Final = 1.0
# What comes at once is told at once: a load is five events within milliseconds.
_BETWEEN_S: Final = 0.1
# A queue may hold thousands, and this comes every second.
_MOST_REQUESTS: Final = 100


class Snapshot(Struct):
    """`requests` are the first of each model."""

    status: Status
    requests: list[RequestStatus]


async def live(request: Request) -> Response:
    """An event `snapshot` every second and after each event; between them the events themselves,
    under their kinds. `recent`, `follow` and Last-Event-ID are as for /events.
    """
    fleet: Fleet = request.app.state.fleet
    reloader: Reloader = request.app.state.reloader
    kept = events_since(request, fleet.events, 0)

    def snapshot() -> bytes:
        status = gateway_status(fleet, reloader.present)
        data = msgspec.json.encode(Snapshot(status, request_statuses(fleet, _MOST_REQUESTS)))
        return b"event: snapshot\ndata: %s\n\n" % data

    if not follows(request):
        return Response(kept() + snapshot(), media_type="text/event-stream")
    return StreamingResponse(
        _follow(fleet.events, kept, snapshot),
        media_type="text/event-stream",
        headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
    )


async def _follow(
    log: EventLog, kept: Callable[[], bytes], snapshot: Callable[[], bytes]
) -> AsyncIterator[bytes]:
    with log.follow() as follower:
        # Only now, so that nothing falls between what is kept and what is followed.
        yield kept() + snapshot()
        while not follower.ended:
            await asyncio.sleep(_BETWEEN_S)
            try:
                async with asyncio.timeout(_EVERY_S - _BETWEEN_S):
                    new = await follower.take()
            except TimeoutError:
                new = []
            yield b"".join(map(event_message, new)) + snapshot()


_LIVE: Final = Operation(
    summary="State and events, as they change",
    tag="operation",
    answer=EVENT_STREAM,
    query=[
        Query("recent", "integer", "Begin with so many events that were."),
        Query("follow", "string", "0: end after the first snapshot."),
    ],
)

routes = [Described("/live", live, _LIVE)]
