"""/admin/v1: status, the operator's verbs, and logs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Final, Protocol

import msgspec
from msgspec import Struct
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from gateway.api import events
from gateway.api.bodies import read_count, read_json
from gateway.api.local_only import LocalOnly
from gateway.api.status import gateway_status, model_status
from gateway.dispatch.refusal import Refusal
from gateway.supervise.compartment import Compartment
from gateway.supervise.fleet import Fleet
from gateway.supervise.lifecycle import State

_SETTLED: Final = (State.READY, State.UNLOADED, State.HELD, State.BACKOFF, State.FAILED)
_FIRST_READING_S: Final = 2.0
_LINES_BEHIND: Final = 1000
_DEFAULT_LINES: Final = 200


class Options(Struct, forbid_unknown_fields=True):
    """`wait`: answer when it is done. `force` and `hold` as in the command line's verbs."""

    wait: bool = True
    force: bool = False
    hold: bool = False


async def status(request: Request) -> Response:
    return _json(gateway_status(request.app.state.fleet))


async def load(request: Request) -> Response:
    compartment, options = await _target(request)
    compartment.load()
    return await _after_load(request, compartment, options)


async def unload(request: Request) -> Response:
    compartment, options = await _target(request)
    await _end(compartment, options, partial(compartment.unload, hold=options.hold))
    return _json(model_status(compartment, request.app.state.fleet))


async def restart(request: Request) -> Response:
    compartment, options = await _target(request)
    await _end(compartment, options, compartment.restart)
    return await _after_load(request, compartment, options)


async def kill(request: Request) -> Response:
    compartment, options = await _target(request)
    await _end(compartment, options, compartment.kill)
    return _json(model_status(compartment, request.app.state.fleet))


async def logs(request: Request) -> Response:
    compartment = _compartment(request)
    lines = read_count(request, "lines", _DEFAULT_LINES)
    if request.query_params.get("follow") in ("1", "true"):
        return StreamingResponse(_follow(compartment, lines), media_type="text/event-stream")
    return PlainTextResponse("".join(f"{line}\n" for line in compartment.log.tail(lines)))


def _compartment(request: Request) -> Compartment:
    fleet: Fleet = request.app.state.fleet
    return fleet.find(request.path_params["model_id"])


async def _target(request: Request) -> tuple[Compartment, Options]:
    compartment = _compartment(request)
    return compartment, await read_json(request, Options, optional=True)


async def _after_load(request: Request, compartment: Compartment, options: Options) -> Response:
    if options.wait:
        await compartment.until(lambda: compartment.state in _SETTLED)
        if compartment.state is not State.READY:
            raise compartment.failure or Refusal(
                "model_unavailable",
                f"{compartment.model.id!r} is {compartment.state}: another command came between.",
            )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_READING_S):
                await compartment.until_measured()
    return _json(model_status(compartment, request.app.state.fleet))


class _Order(Protocol):
    def __call__(self, *, force: bool) -> None: ...


async def _end(compartment: Compartment, options: Options, order: _Order) -> None:
    """Give an order that ends the present worker; wait for that end if the options say so."""
    worker = compartment.worker
    order(force=options.force)
    if options.wait and worker is not None:
        await compartment.until(lambda: compartment.worker is not worker or worker.given_up)


async def _follow(compartment: Compartment, lines: int) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | None] = asyncio.Queue(_LINES_BEHIND)

    def put(line: str | None) -> None:
        # A reader that is too slow loses the oldest lines; the file has them all.
        if queue.full():
            queue.get_nowait()
        queue.put_nowait(line)

    def put_in_thread(line: str | None) -> None:
        loop.call_soon_threadsafe(put, line)

    tail = compartment.log.tail(lines)
    unfollow = compartment.log.follow(put_in_thread)
    try:
        for line in tail:
            yield b"data: " + line.encode() + b"\n\n"
        while (new := await queue.get()) is not None:
            yield b"data: " + new.encode() + b"\n\n"
    finally:
        unfollow()


def _json(body: Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


routes = [
    Mount(
        "/admin/v1",
        routes=[
            Route("/status", status),
            Route("/models/{model_id:path}/load", load, methods=["POST"]),
            Route("/models/{model_id:path}/unload", unload, methods=["POST"]),
            Route("/models/{model_id:path}/restart", restart, methods=["POST"]),
            Route("/models/{model_id:path}/kill", kill, methods=["POST"]),
            Route("/models/{model_id:path}/logs", logs),
            *events.routes,
        ],
        middleware=[Middleware(LocalOnly)],
    )
]
