"""GET /admin/v1/events: what happens, as server-sent events."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.http.bodies import read_count
from gateway.http.openapi.operation import EVENT_STREAM, Described, Operation, Query
from gateway.models.fleet import Fleet
from gateway.system.events import Event, EventLog

_DEFAULT_RECENT: Final = 100
# Proxies and clients take a silent connection for a dead one.
_COMMENT_S: Final = 10.0
_COMMENT: Final = b": nothing new\n\n"
_EVENT_ID: Final = re.compile("[0-9]{1,18}")


async def events(request: Request) -> Response:
    """`recent=N` begins with the last N, `follow=0` ends after them. A client that comes back with
    Last-Event-ID gets what it missed, as far as it is kept.
    """
    fleet: Fleet = request.app.state.fleet
    going_on = follows(request)
    kept = events_since(request, fleet.events, 0 if going_on else _DEFAULT_RECENT)
    if not going_on:
        return Response(kept(), media_type="text/event-stream")
    return StreamingResponse(
        _follow(fleet.events, kept),
        media_type="text/event-stream",
        headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
    )


def follows(request: Request) -> bool:
    """Whether the stream goes on with what comes."""
    return request.query_params.get("follow", "1") not in ("0", "false")


def events_since(request: Request, log: EventLog, default: int) -> Callable[[], bytes]:
    """What a follower begins with, once it is called: the messages behind Last-Event-ID, else the
    last of `recent`.
    """
    count = read_count(request, "recent", default)
    last_id = request.headers.get("last-event-id", "")

    def kept() -> bytes:
        events = log.after(int(last_id)) if _EVENT_ID.fullmatch(last_id) else log.recent(count)
        return b"".join(map(event_message, events))

    return kept


async def _follow(log: EventLog, kept: Callable[[], bytes]) -> AsyncIterator[bytes]:
    with log.follow() as follower:
        # Only now, so that nothing falls between what is kept and what is followed.
        yield kept() or _COMMENT
        while not follower.ended:
            try:
                async with asyncio.timeout(_COMMENT_S):
                    new = await follower.take()
            except TimeoutError:
                yield _COMMENT
                continue
            if follower.missed:
                yield f": {follower.missed} events were missed\n\n".encode()
                follower.missed = 0
            yield b"".join(map(event_message, new))


def event_message(event: Event) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.kind.encode(), event.as_json())


_EVENTS: Final = Operation(
    summary="What happens",
    tag="operation",
    answer=EVENT_STREAM,
    query=[
        Query("recent", "integer", "Begin with so many that were."),
        Query("follow", "string", "0: end after these."),
    ],
)

routes = [Described("/events", events, _EVENTS)]
