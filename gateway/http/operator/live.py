"""The operator's streams: events, requests, the page's snapshots, and logs."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from gateway.http.operator.status import status_for
from gateway.http.wire.auth import caller_of
from gateway.http.wire.bodies import event_stream, json_response, read_count
from gateway.http.wire.command_bodies import Status
from gateway.http.wire.errors import invalid
from gateway.http.wire.finished import FinishedRequest, FinishedRequests
from gateway.http.wire.openapi import EVENT_STREAM, NAMES_MODEL, Operation, Query, Routes
from gateway.models.fleet import Fleet, Phase
from gateway.models.reload import Reloader
from gateway.requests.request import Request
from gateway.system.events import Event, EventLog
from gateway.system.lane import Lane
from gateway.system.log_files import LogReader
from gateway.system.log_lines import since_stamp
from gateway.system.refusal import Code, Refusal

live_routes = Routes("operation")

_DEFAULT_RECENT: Final = 100
# Proxies and clients take a silent connection for a dead one.
_COMMENT_S: Final = 10.0
_COMMENT: Final = b": nothing new\n\n"
_EVENT_ID: Final = re.compile("[0-9]{1,18}")


def _of_events(summary: str, end: str) -> Operation:
    query = [
        Query("recent", "integer", "Begin with this many past events."),
        Query("model", "string", "Begin with past events of this model alone."),
        Query("follow", "string", f"0: {end}."),
    ]
    return Operation(summary, answer=EVENT_STREAM, query=query)


@live_routes.get("/events", _of_events("The events", "end after the past events"))
async def events(request: HttpRequest) -> Response:
    """Send the last N events with `recent=N`, and then new ones unless `follow=0`. A client that
    reconnects with Last-Event-ID gets the events that it missed, as far as they are kept.
    """
    fleet: Fleet = request.app.state.fleet
    going_on = follows(request)
    kept = events_since(request, fleet.events, 0 if going_on else _DEFAULT_RECENT)
    if not going_on:
        return Response(kept(), media_type="text/event-stream")
    return event_stream(_follow(fleet.events, kept, lambda new: new or _COMMENT, wait_s=_COMMENT_S))


def follows(request: HttpRequest) -> bool:
    """Whether the stream goes on with new events."""
    return request.query_params.get("follow", "1") not in ("0", "false")


def events_since(request: HttpRequest, log: EventLog, default: int) -> Callable[[], bytes]:
    """A function that returns the first messages of a stream: the events after Last-Event-ID, else
    the last `recent` events, of the model that `model` names.
    """
    count = read_count(request, "recent", default)
    last_id = request.headers.get("last-event-id", "")
    model = request.query_params.get("model")

    def kept() -> bytes:
        events = (
            log.after(int(last_id)) if _EVENT_ID.fullmatch(last_id) else log.recent(count, model)
        )
        return b"".join(map(event_message, events))

    return kept


async def _follow(
    log: EventLog,
    kept: Callable[[], bytes],
    write: Callable[[bytes], bytes],
    *,
    wait_s: float,
    pause_s: float = 0.0,
) -> AsyncIterator[bytes]:
    """Yield the messages of the kept events, and then again and again those of all new events, or
    none if no event came within `wait_s`. `write` may add to the messages. During `pause_s` events
    gather that come together.
    """
    with log.follow() as follower:
        # `kept` is called only now: an event before this would be neither kept nor followed.
        yield write(kept())
        while not follower.ended:
            await asyncio.sleep(pause_s)
            try:
                async with asyncio.timeout(wait_s):
                    new = await follower.take()
            except TimeoutError:
                new = []
            missed = b""
            if follower.missed:
                missed = b": %d events were missed\n\n" % follower.missed
                follower.missed = 0
            yield write(missed + b"".join(map(event_message, new)))


def event_message(event: Event) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.kind.encode(), event.as_json())


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


@live_routes.get("/requests", Operation("The present requests", answer=RequestList))
async def requests(request: HttpRequest) -> Response:
    found = RequestList(request_statuses(request.app.state.fleet))
    return json_response(found)


class FinishedList(Struct):
    """The latest first. `count` is of all requests that have finished since the gateway's start."""

    count: int
    requests: list[FinishedRequest]


@live_routes.get(
    "/requests/finished",
    Operation(
        "The requests that finished last",
        answer=FinishedList,
        query=[Query("recent", "integer", "How many of the last requests.")],
    ),
)
async def finished_requests(request: HttpRequest) -> Response:
    """Send the last `recent` finished requests, of the 200 that are kept."""
    finished: FinishedRequests = request.app.state.finished
    recent = finished.recent(read_count(request, "recent", _DEFAULT_RECENT))
    return json_response(FinishedList(finished.count, recent))


def request_statuses(fleet: Fleet, most: int | None = None) -> list[RequestStatus]:
    """The requests of all models; of each model only the first `most`, if that is given."""
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


class Snapshot(Struct):
    """`requests` are the first requests of each model, and `finished` counts the requests that have
    finished. `reads`: the key only reads.
    """

    status: Status
    requests: list[RequestStatus]
    finished: int
    reads: bool


@live_routes.get(
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
    kept = events_since(request, fleet.events, 0)
    caller = caller_of(request)

    def snapshot() -> bytes:
        status = status_for(caller, fleet, reloader.present)
        present = request_statuses(fleet, _MOST_REQUESTS)
        data = msgspec.json.encode(Snapshot(status, present, finished.count, caller.reads))
        return b"event: snapshot\ndata: %s\n\n" % data

    if not follows(request):
        return Response(kept() + snapshot(), media_type="text/event-stream")
    return event_stream(
        _follow(
            fleet.events,
            kept,
            lambda new: new + snapshot(),
            wait_s=_EVERY_S - _BETWEEN_S,
            pause_s=_BETWEEN_S,
        )
    )


_DEFAULT_LINES: Final = 200
# The answer is built in memory.
_MOST_LINES: Final = 10_000
_POLL_S: Final = 0.2
# The longest wait for up to 10,000 lines, which are read after the reads for other clients.
_ANSWER_S: Final = 20.0

_lane: Final = Lane("log reader")

T = TypeVar("T")


def _of_log(summary: str, refusals: tuple[Code, ...] = ()) -> Operation:
    return Operation(
        summary,
        answer="text/plain",
        stream=EVENT_STREAM,
        query=[
            Query("lines", "integer", "How many of the last lines."),
            Query("since", "string", "A time, or a duration before now, as 10m."),
            Query("follow", "string", "1: go on with new lines."),
        ],
        refusals=refusals,
    )


@live_routes.get("/logs", _of_log("The gateway's log"))
async def gateway_log(request: HttpRequest) -> Response:
    """Send the log of the gateway: lines of JSON."""
    fleet: Fleet = request.app.state.fleet
    return await _answer(request, fleet.log_path)


@live_routes.get("/models/{model_id:path}/logs", _of_log("A model's log", NAMES_MODEL))
async def model_log(request: HttpRequest) -> Response:
    """Send the output of a model's workers, with a time before each line."""
    fleet: Fleet = request.app.state.fleet
    return await _answer(
        request, fleet.roster.find(request.path_params["model_id"], caller_of(request)).log.path
    )


async def _answer(request: HttpRequest, path: Path) -> Response:
    """Send the last N lines with `lines=N`, only lines after a time or within a duration with
    `since`, and then new lines with `follow=1`.
    """
    fleet: Fleet = request.app.state.fleet
    count = min(_MOST_LINES, read_count(request, "lines", _DEFAULT_LINES))
    since = _since(request)
    if request.query_params.get("follow") in ("1", "true"):
        following = _follow_log(fleet, path, count, since)
        # Whoever has the head of the answer gets all lines that are written from then on.
        first = await anext(following)
        return event_stream(_begun(first, following))

    def text() -> str:
        with LogReader(path) as reader:
            return "".join(f"{line}\n" for line in reader.last(count, since))

    return PlainTextResponse(await _beside(text, path))


async def _begun(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(rest):
        yield first
        async for chunk in rest:
            yield chunk


async def _follow_log(
    fleet: Fleet, path: Path, count: int, since: str | None
) -> AsyncGenerator[bytes]:
    loop = asyncio.get_running_loop()
    reader = await _beside(partial(LogReader, path), path)
    try:
        lines = await _beside(partial(reader.last, count, since), path)
        yield b"".join(map(_message, lines)) or _COMMENT
        said_at = loop.time()
        while True:
            # Look at the phase before reading, so that lines that are written before the end are
            # still read.
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
        # The lane runs this after a read that may still be going on.
        _lane.soon(reader.close)


async def _beside(call: Callable[[], T], path: Path) -> T:
    """Raises: Refusal: the log can't be read, or its disk doesn't answer."""
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
