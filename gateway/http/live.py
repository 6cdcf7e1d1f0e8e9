"""The operator's streams: events, requests, the page's snapshots, and logs."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from gateway.http.auth import caller_of
from gateway.http.bodies import event_stream, json_response, read_count
from gateway.http.command_bodies import Status
from gateway.http.errors import invalid
from gateway.http.openapi import EVENT_STREAM, NAMES_MODEL, Described, Operation, Query
from gateway.http.status import gateway_status
from gateway.models.fleet import Fleet, Phase
from gateway.models.reload import Reloader
from gateway.requests.request import Request
from gateway.system.events import Event, EventLog
from gateway.system.lane import Lane
from gateway.system.log_files import LogReader
from gateway.system.log_lines import since_stamp
from gateway.system.refusal import Refusal

_DEFAULT_RECENT: Final = 100
# Proxies and clients take a silent connection for a dead one.
_COMMENT_S: Final = 10.0
_COMMENT: Final = b": nothing new\n\n"
_EVENT_ID: Final = re.compile("[0-9]{1,18}")


async def events(request: HttpRequest) -> Response:
    """`recent=N` begins with the last N events; `follow=0` ends after them. A client that
    reconnects with Last-Event-ID gets the events that it missed, as far as they are kept.
    """
    fleet: Fleet = request.app.state.fleet
    going_on = follows(request)
    kept = events_since(request, fleet.events, 0 if going_on else _DEFAULT_RECENT)
    if not going_on:
        return Response(kept(), media_type="text/event-stream")
    return event_stream(_follow_events(fleet.events, kept))


def follows(request: HttpRequest) -> bool:
    """Whether the stream goes on with new events."""
    return request.query_params.get("follow", "1") not in ("0", "false")


def events_since(request: HttpRequest, log: EventLog, default: int) -> Callable[[], bytes]:
    """A function that returns the first messages of a stream: the events behind Last-Event-ID, else
    the last `recent` events.
    """
    count = read_count(request, "recent", default)
    last_id = request.headers.get("last-event-id", "")

    def kept() -> bytes:
        events = log.after(int(last_id)) if _EVENT_ID.fullmatch(last_id) else log.recent(count)
        return b"".join(map(event_message, events))

    return kept


async def _follow_events(log: EventLog, kept: Callable[[], bytes]) -> AsyncIterator[bytes]:
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


State: TypeAlias = Literal["running", "parked", "waiting"]


class RequestStatus(Struct):
    """`place` is 1 for the request of the model that starts next, and null for one that runs. A
    parked request ran in a worker that is gone. `age_s` counts from its arrival. `key` is the name
    of its API key, null without keys. `prompt_tokens` are 0 until they are counted. A request for
    several answers is listed once for each, with the same id.
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
    """For each model the requests that run, oldest first, then those that wait, in their order."""

    requests: list[RequestStatus]


async def requests(request: HttpRequest) -> Response:
    found = RequestList(request_statuses(request.app.state.fleet))
    return json_response(found)


def request_statuses(fleet: Fleet, most: int | None = None) -> list[RequestStatus]:
    """The requests of all models; with `most` only the first so many of each model."""
    now = fleet.now()
    each_model = (
        (
            _status(request, place, compartment.model.id, now)
            for place, request in islice(compartment.traffic.queue.places(), most)
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


# Rates and ages change all the time; the page is updated this often.
_EVERY_S: Final = 1.0
# Events that come together are sent together: a load makes five within milliseconds.
_BETWEEN_S: Final = 0.1
# A queue may hold thousands, and a snapshot is sent every second.
_MOST_REQUESTS: Final = 100


class Snapshot(Struct):
    """`requests` are the first requests of each model."""

    status: Status
    requests: list[RequestStatus]


async def live(request: HttpRequest) -> Response:
    """Sends an event `snapshot` every second and after each event, and the events themselves under
    their kinds. `recent`, `follow` and Last-Event-ID work as in /events.
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
    return event_stream(_follow(fleet.events, kept, snapshot))


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


_DEFAULT_LINES: Final = 200
# The answer is built in memory.
_MOST_LINES: Final = 10_000
_POLL_S: Final = 0.2
# Proxies and clients take a silent connection for a dead one.
T = TypeVar("T")

# To read up to 10,000 lines, after the reads of other clients.
_ANSWER_S: Final = 20.0

_lane: Final = Lane("log reader")


async def gateway_log(request: HttpRequest) -> Response:
    """The log of the gateway: lines of JSON."""
    fleet: Fleet = request.app.state.fleet
    return await _answer(request, fleet.log_path)


async def model_log(request: HttpRequest) -> Response:
    """The output of a model's workers, a time before each line."""
    fleet: Fleet = request.app.state.fleet
    return await _answer(
        request, fleet.roster.find(request.path_params["model_id"], caller_of(request)).log.path
    )


async def _answer(request: HttpRequest, path: Path) -> Response:
    """`lines=N` sends the last N lines; `since` is a time or a duration; `follow=1` goes on with
    new lines.
    """
    fleet: Fleet = request.app.state.fleet
    count = min(_MOST_LINES, read_count(request, "lines", _DEFAULT_LINES))
    since = _since(request)
    if request.query_params.get("follow") in ("1", "true"):
        return event_stream(_follow_log(fleet, path, count, since))

    def text() -> str:
        with LogReader(path) as reader:
            return "".join(f"{line}\n" for line in reader.last(count, since))

    return PlainTextResponse(await _beside(text, path))


async def _follow_log(
    fleet: Fleet, path: Path, count: int, since: str | None
) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    reader = await _beside(partial(LogReader, path), path)
    try:
        lines = await _beside(partial(reader.last, count, since), path)
        yield b"".join(map(_message, lines)) or _COMMENT
        said_at = loop.time()
        while True:
            # Look at the phase before reading: lines that are written before the end are then still
            # read.
            stopped = fleet.phase is Phase.STOPPED
            while lines := await _beside(reader.read, path):
                yield b"".join(map(_message, lines))
                said_at = loop.time()
            if stopped:
                return
            if loop.time() - said_at >= _COMMENT_S:
                yield _COMMENT
                said_at = loop.time()
            await asyncio.sleep(_POLL_S)
    finally:
        # Runs behind a read that may still be going on.
        _lane.soon(reader.close)


async def _beside(call: Callable[[], T], path: Path) -> T:
    """Raises: Refusal: the disk doesn't answer."""
    try:
        return await _lane.run(call, _ANSWER_S, str(path))
    except OSError as error:
        raise Refusal("internal_error", f"The log can't be read: {error}.") from error


def _since(request: HttpRequest) -> str | None:
    text = request.query_params.get("since")
    try:
        return since_stamp(text, time.time()) if text else None
    except ValueError as error:
        raise invalid(f"since: {error}", "since") from error


def _message(line: str) -> bytes:
    return f"data: {line}\n\n".encode()


_LOG: Final = Operation(
    summary="The gateway's log",
    tag="operation",
    answer="text/plain",
    stream=EVENT_STREAM,
    query=[
        Query("lines", "integer", "How many of the last."),
        Query("since", "string", "A time, or how long ago, as 10m."),
        Query("follow", "string", "1: go on with what is written."),
    ],
)

live_routes = [
    Described("/events", events, _EVENTS),
    Described("/requests", requests, _REQUESTS),
    Described("/live", live, _LIVE),
    Described("/logs", gateway_log, _LOG),
    Described(
        "/models/{model_id:path}/logs",
        model_log,
        msgspec.structs.replace(_LOG, summary="A model's log", refusals=NAMES_MODEL),
    ),
]
