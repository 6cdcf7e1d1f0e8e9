"""Logs over HTTP, read from their files: the gateway's own, and one for each model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from gateway.http.bodies import read_count
from gateway.http.callers import caller_of
from gateway.http.openapi.operation import EVENT_STREAM, NAMES_MODEL, Described, Operation, Query
from gateway.models.fleet import Fleet, Phase
from gateway.system.lane import Lane
from gateway.system.log_files import LogReader
from gateway.system.log_lines import since_stamp
from gateway.system.refusal import Refusal

_DEFAULT_LINES: Final = 200
# An answer is made in memory.
_MOST_LINES: Final = 10_000
_POLL_S: Final = 0.2
# Proxies and clients take a silent connection for a dead one.
_COMMENT_S: Final = 10.0
_COMMENT: Final = b": nothing new\n\n"
T = TypeVar("T")

# For a reading of up to 10,000 lines, behind those of others.
_ANSWER_S: Final = 20.0

_lane: Final = Lane("log reader")


async def gateway_log(request: Request) -> Response:
    """Lines of JSON."""
    fleet: Fleet = request.app.state.fleet
    return await _answer(request, fleet.log_path)


async def model_log(request: Request) -> Response:
    """What its workers print, each line after its time."""
    fleet: Fleet = request.app.state.fleet
    return await _answer(
        request, fleet.roster.find(request.path_params["model_id"], caller_of(request)).log.path
    )


async def _answer(request: Request, path: Path) -> Response:
    """`lines=N` of the last lines, `since` a time or how long ago; `follow=1` goes on."""
    fleet: Fleet = request.app.state.fleet
    count = min(_MOST_LINES, read_count(request, "lines", _DEFAULT_LINES))
    since = _since(request)
    if request.query_params.get("follow") in ("1", "true"):
        follow = _follow(fleet, path, count, since)
        return StreamingResponse(follow, media_type="text/event-stream")

    def text() -> str:
        with LogReader(path) as reader:
            return "".join(f"{line}\n" for line in reader.last(count, since))

    return PlainTextResponse(await _beside(text, path))


async def _follow(fleet: Fleet, path: Path, count: int, since: str | None) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    reader = await _beside(partial(LogReader, path), path)
    try:
        lines = await _beside(partial(reader.last, count, since), path)
        yield b"".join(map(_message, lines)) or _COMMENT
        said_at = loop.time()
        while True:
            # Asked first: what comes before the end is read after it.
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
        # After a read that may still run.
        _lane.soon(reader.close)


async def _beside(call: Callable[[], T], path: Path) -> T:
    """Raises: Refusal if the disk doesn't answer."""
    try:
        return await _lane.run(call, _ANSWER_S, str(path))
    except OSError as error:
        raise Refusal("internal_error", f"The log can't be read: {error}.") from error


def _since(request: Request) -> str | None:
    text = request.query_params.get("since")
    try:
        return since_stamp(text, time.time()) if text else None
    except ValueError as error:
        raise Refusal("invalid_request_error", f"since: {error}", param="since") from error


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

routes = [
    Described("/logs", gateway_log, _LOG),
    Described(
        "/models/{model_id:path}/logs",
        model_log,
        msgspec.structs.replace(_LOG, summary="A model's log", refusals=NAMES_MODEL),
    ),
]
