"""The logs of the gateway and of the models."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from gateway.access.caller import NeededKey
from gateway.http.wire.auth import caller_of
from gateway.http.wire.bodies import COMMENT, COMMENT_S, event_stream, read_count
from gateway.http.wire.errors import invalid
from gateway.http.wire.openapi import EVENT_STREAM, NAMES_MODEL, Operation, Query, Routes
from gateway.models.fleet import Fleet, Phase
from gateway.system.lane import Lane
from gateway.system.log_files import LogReader
from gateway.system.log_lines import since_stamp
from gateway.system.refusal import Code, Refusal

routes = Routes("operation", "/admin/v1", NeededKey.ADMIN)

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


@routes.get("/logs", _of_log("The gateway's log"))
async def gateway_log(request: HttpRequest) -> Response:
    """Send the log of the gateway: lines of JSON."""
    fleet: Fleet = request.app.state.fleet
    return await _answer(request, fleet.log_path)


@routes.get("/models/{model_id:path}/logs", _of_log("A model's log", NAMES_MODEL))
async def model_log(request: HttpRequest) -> Response:
    """Send the output of a model's workers, with a time before each line."""
    fleet: Fleet = request.app.state.fleet
    model = fleet.roster.find(request.path_params["model_id"], caller_of(request))
    return await _answer(request, model.log.path)


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
        yield b"".join(map(_message, lines)) or COMMENT
        sent_at = loop.time()
        while True:
            # Look at the phase before reading, so that lines that are written before the end are
            # still read.
            stopped = fleet.phase is Phase.STOPPED
            while lines := await _beside(reader.read, path):
                yield b"".join(map(_message, lines))
                sent_at = loop.time()
            if stopped:
                return
            if loop.time() - sent_at >= COMMENT_S:
                yield COMMENT
                sent_at = loop.time()
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
