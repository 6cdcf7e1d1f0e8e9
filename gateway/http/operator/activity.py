"""What the gateway does: its events, its requests, the page's snapshots, and the history."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import islice
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.access.caller import NeededKey
from gateway.history.history import HistoryMark, Span
from gateway.history.recorder import Recorder
from gateway.history.steps import Columns
from gateway.http.generation.request_memory import RequestMemory
from gateway.http.operator.status import status_for
from gateway.http.wire.auth import caller_of
from gateway.http.wire.bodies import COMMENT, COMMENT_S, event_stream, json_response, read_count
from gateway.http.wire.command_bodies import Status
from gateway.http.wire.errors import invalid
from gateway.http.wire.finished import FinishedRequest, FinishedRequests
from gateway.http.wire.openapi import EVENT_STREAM, Operation, Query, Routes
from gateway.models.fleet import Fleet
from gateway.models.reload import Reloader
from gateway.requests.request import Request
from gateway.system.events import Event
from gateway.why.answer import Why

routes = Routes("operation", "/admin/v1", NeededKey.ADMIN)

_DEFAULT_RECENT: Final = 100
_EVENT_ID: Final = re.compile("[0-9]{1,18}")


def _of_events(summary: str, end: str) -> Operation:
    query = [
        Query("recent", "integer", "Begin with this many past events."),
        Query("model", "string", "Begin with past events of this model alone."),
        Query("follow", "string", f"0: {end}."),
    ]
    return Operation(summary, answer=EVENT_STREAM, query=query, reads=True)


@routes.get("/events", _of_events("The events", "end after the past events"))
async def events(request: HttpRequest) -> Response:
    """Send the last N events with `recent=N`, and then new ones unless `follow=0`. A client that
    reconnects with Last-Event-ID gets the events that it missed, as far as they are stored.
    """
    recent = 0 if _follows(request) else _DEFAULT_RECENT
    return _stream(request, lambda messages: messages, recent=recent, wait_s=COMMENT_S)


def _follows(request: HttpRequest) -> bool:
    """Whether the stream goes on with new events."""
    return request.query_params.get("follow", "1") not in ("0", "false")


def _stream(
    request: HttpRequest,
    write: Callable[[bytes], bytes],
    *,
    recent: int,
    wait_s: float,
    pause_s: float = 0.0,
) -> Response:
    """The past events: those after Last-Event-ID, else the last `recent` ones, of the model that
    `model` names. Then, if the client follows, again and again the new events, or none if no event
    came within `wait_s`. `write` may add to their messages. During `pause_s` events gather that
    come together.
    """
    fleet: Fleet = request.app.state.fleet
    log = fleet.events
    count = read_count(request, "recent", recent)
    last_id = request.headers.get("last-event-id", "")
    model = request.query_params.get("model")

    def past() -> bytes:
        known = _EVENT_ID.fullmatch(last_id)
        return _messages(log.after(int(last_id)) if known else log.recent(count, model))

    async def follow() -> AsyncIterator[bytes]:
        with log.follow() as follower:
            # The past is read only now: an event before this would be neither past nor followed.
            yield write(past()) or COMMENT
            while not follower.ended:
                await asyncio.sleep(pause_s)
                try:
                    async with asyncio.timeout(wait_s):
                        new = await follower.next_events()
                except TimeoutError:
                    new = []
                missed = b""
                if follower.missed:
                    missed = b": %d events were missed\n\n" % follower.missed
                    follower.missed = 0
                yield write(missed + _messages(new)) or COMMENT

    if _follows(request):
        return event_stream(follow())
    return Response(write(past()), media_type=EVENT_STREAM)


def _messages(events: Iterable[Event]) -> bytes:
    return b"".join(
        b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.kind.encode(), event.as_json())
        for event in events
    )


RequestState: TypeAlias = Literal["running", "parked", "waiting"]


class RequestStatus(Struct):
    """`place` is 1 for the request of the model that starts next, and null for a request that runs.
    A parked request ran in a worker that is gone. `age_s` counts from its arrival. `key` is the
    name of its API key, null without keys. `prompt_tokens` are 0 until they are counted. A request
    for several answers is listed once for each answer, with the same id.
    """

    id: str
    model: str
    key: str | None
    state: RequestState
    place: int | None
    age_s: float
    prompt_tokens: int
    delivered_tokens: int


class RequestList(Struct):
    """For each model the requests that run, oldest first, then those that wait, in queue order."""

    requests: list[RequestStatus]


@routes.get("/requests", Operation("The present requests", answer=RequestList, reads=True))
async def requests(request: HttpRequest) -> Response:
    return json_response(RequestList(_request_statuses(request.app.state.fleet)))


class FinishedList(Struct):
    """The latest first. `count` is of all requests that have finished since the gateway's start."""

    count: int
    requests: list[FinishedRequest]


@routes.get(
    "/requests/finished",
    Operation(
        "The requests that finished last",
        answer=FinishedList,
        query=[Query("recent", "integer", "How many of the last requests.")],
        reads=True,
    ),
)
async def finished_requests(request: HttpRequest) -> Response:
    """Send the last `recent` finished requests, of the 200 that are stored."""
    finished: FinishedRequests = request.app.state.finished
    recent = finished.recent(read_count(request, "recent", _DEFAULT_RECENT))
    return json_response(FinishedList(finished.count, recent))


@routes.get(
    "/requests/{request_id:path}/why",
    Operation("Why a request began late", answer=Why, refusals=("not_found",)),
)
async def why(request: HttpRequest) -> Response:
    """Say why a request began late, and what of its prompt was new. The answer has parts of the
    prompt, so keys that only read don't get it.
    """
    memory: RequestMemory = request.app.state.request_memory
    return json_response(memory.why(request.path_params["request_id"]))


def _request_statuses(fleet: Fleet, most: int | None = None) -> list[RequestStatus]:
    """The requests of all models; of each model only the first `most`, if that is given."""
    now = fleet.now()
    return [
        _status(request, place, supervisor.model.id, now)
        for supervisor in fleet.roster.everyone
        for place, request in islice(supervisor.traffic.queue.places(), most)
    ]


def _status(request: Request, place: int | None, model_id: str, now: float) -> RequestStatus:
    progress = request.progress
    state: RequestState = "parked" if progress.begun else "waiting"
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


# How often the page is updated, since rates and ages change all the time.
_EVERY_S: Final = 1.0
# Events that come together are sent together: a load makes five within milliseconds.
_BETWEEN_S: Final = 0.1
# Requests of each model: a queue may hold thousands, and a snapshot is sent every second.
_MOST_REQUESTS: Final = 100


class PageSnapshot(Struct):
    """`requests` are the first requests of each model, and `finished` counts the requests that have
    finished. `reads`: the key only reads.
    """

    status: Status
    requests: list[RequestStatus]
    finished: int
    reads: bool


@routes.get(
    "/live",
    _of_events("The whole state each second, and the events", "end after the first snapshot"),
)
async def live(request: HttpRequest) -> Response:
    """Send an event `snapshot` every second and after each event, and the events themselves.
    `recent`, `follow` and Last-Event-ID work as in /events.
    """
    fleet: Fleet = request.app.state.fleet
    reloader: Reloader = request.app.state.reloader
    finished: FinishedRequests = request.app.state.finished
    caller = caller_of(request)

    def write(messages: bytes) -> bytes:
        status = status_for(caller, fleet, reloader.present)
        present = _request_statuses(fleet, _MOST_REQUESTS)
        data = msgspec.json.encode(PageSnapshot(status, present, finished.count, caller.reads))
        return b"%sevent: snapshot\ndata: %s\n\n" % (messages, data)

    return _stream(request, write, recent=0, wait_s=_EVERY_S - _BETWEEN_S, pause_s=_BETWEEN_S)


_SPANS: Final[dict[str, Span]] = {"hour": "hour", "day": "day"}


class HistoryAnswer(Struct):
    """`columns` has the steps that have ended, `marks` the last evictions and deaths in them."""

    span: Span
    columns: Columns
    marks: list[HistoryMark]


@routes.get(
    "/history",
    Operation(
        "The last hour, or the last day",
        answer=HistoryAnswer,
        reads=True,
        query=[Query("span", "string", "hour, in steps of 10 s, or day, in steps of 120 s.")],
    ),
)
async def history(request: HttpRequest) -> Response:
    recorder: Recorder = request.app.state.recorder
    text = request.query_params.get("span", "hour")
    if (span := _SPANS.get(text)) is None:
        raise invalid(f"span is {text[:100]!r}: send hour or day.", "span")
    return json_response(HistoryAnswer(span, *recorder.history.read(span, time.time())))
