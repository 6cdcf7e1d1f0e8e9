"""The agent's process and its routes. An agent serves gateways with its key, until a signal."""

from __future__ import annotations

import asyncio
import functools
import hmac
import logging
import os
import platform
import resource
import signal
import socket
import sys
from typing import Final

import msgspec
import uvicorn
import uvloop
from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import VERSION
from gateway.access.api_key import digest_of
from gateway.access.caller import shown_key
from gateway.http.wire.access_log import begin_record
from gateway.http.wire.bodies import read_json
from gateway.http.wire.connection import Connection
from gateway.http.wire.connection_limits import ConnectionLimiter, Handshake, capacity
from gateway.http.wire.errors import error_response, on_defect, on_http_exception, on_refusal
from gateway.server.agent_sessions import MOST_RANKS, Sessions
from gateway.server.uvicorn_server import UvicornServer
from gateway.system.lane import Lane
from gateway.system.memory import back_end, host_memory
from gateway.system.memory_reading import FootprintError
from gateway.system.refusal import Refusal
from gateway.system.state_dir import StateDir, near_url
from gateway.system.tasks import Faults, Tasks
from gateway.system.tls import Certificates
from gateway.workers.agent_bodies import (
    API,
    FootprintBody,
    HostBody,
    HostMemoryBody,
    LeaseTurn,
    MemoryWish,
    Opened,
    Opening,
    OrderBody,
    Ports,
    PortsBody,
    Promised,
    Started,
)
from gateway.workers.host import free_ports
from gateway.workers.leftovers import WorkerRecords, sweep
from gateway.workers.worker_log import WorkerLog

_ANSWER_S: Final = 5.0
_RETRY_AFTER_S: Final = 1
_machine: Final = Lane("machine")


async def _host(request: Request) -> Response:
    sessions = _sessions(request)
    memory = await _machine.run(host_memory, _ANSWER_S, "the machine's memory")
    room = sessions.room
    return _json(
        HostBody(
            api=API,
            version=VERSION,
            hostname=socket.gethostname(),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            back_end=back_end(),
            pid=os.getpid(),
            versions=sessions.versions,
            memory=HostMemoryBody(
                budget_bytes=room.budget_bytes,
                held_bytes=room.held_bytes,
                free_bytes=room.free_bytes,
                total_bytes=memory.total_bytes,
                available_bytes=memory.available_bytes,
                pressure=memory.pressure,
            ),
            ranks=len(sessions.ranks),
        )
    )


async def _ports(request: Request) -> Response:
    wanted = await read_json(request, Ports)
    try:
        return _json(PortsBody(free_ports(wanted.count)))
    except OSError as error:
        raise Refusal("overloaded", f"There are no free ports: {error}.") from error


async def _open(request: Request) -> Response:
    opening = await read_json(request, Opening)
    session = _sessions(request).open(opening)
    return _json(Opened(session.id, session.lease.lease_s), 201)


async def _turn(request: Request) -> Response:
    session = _sessions(request).session(request.path_params["lease"])
    turn = await read_json(request, LeaseTurn)
    left = asyncio.ensure_future(_left(request))
    try:
        return _json(await session.turn(turn, left))
    finally:
        left.cancel()


async def _close(request: Request) -> Response:
    sessions = _sessions(request)
    sessions.close(sessions.session(request.path_params["lease"]), "its gateway needs it no more")
    return Response(status_code=204)


async def _start(request: Request) -> Response:
    sessions = _sessions(request)
    order = await read_json(request, OrderBody)
    # The lease may have ended while the body arrived.
    session = sessions.session(request.path_params["lease"])
    return _json(Started(sessions.start(session, order).pid), 201)


async def _footprint(request: Request) -> Response:
    rank = _sessions(request).rank(request.path_params["rank"])
    try:
        return _json(FootprintBody(await rank.footprint()))
    except (FootprintError, OSError) as error:
        raise Refusal(
            "overloaded",
            f"The footprint can't be read: {error}.",
            retry_after_s=_RETRY_AFTER_S,
        ) from error


async def _promise(request: Request) -> Response:
    wish = await read_json(request, MemoryWish)
    sessions = _sessions(request)
    # The rank may have ended while the body arrived.
    rank = sessions.rank(request.path_params["rank"])
    return _json(Promised(sessions.raise_promise(rank, wish.wanted_bytes)))


async def _signal(request: Request) -> Response:
    rank = _sessions(request).rank(request.path_params["rank"])
    match request.path_params["signal"]:
        case "dump":
            await rank.dump()
        case "end":
            await rank.end()
        case "kill":
            await rank.kill()
        case other:
            raise Refusal("not_found", f"{other!r} is unknown: send dump, end or kill.")
    return Response(status_code=204)


ROUTES: Final = (
    Route("/v1/host", _host, methods=["GET"]),
    Route("/v1/ports", _ports, methods=["POST"]),
    Route("/v1/leases", _open, methods=["POST"]),
    Route("/v1/leases/{lease}", _close, methods=["DELETE"]),
    Route("/v1/leases/{lease}/turn", _turn, methods=["POST"]),
    Route("/v1/leases/{lease}/ranks", _start, methods=["POST"]),
    Route("/v1/ranks/{rank}/footprint", _footprint, methods=["GET"]),
    Route("/v1/ranks/{rank}/promise", _promise, methods=["POST"]),
    Route("/v1/ranks/{rank}/{signal}", _signal, methods=["POST"]),
)


async def _left(request: Request) -> None:
    """Wait until the connection is closed. The body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _sessions(request: Request) -> Sessions:
    sessions: Sessions = request.app.state.sessions
    return sessions


def _json(body: Struct, status_code: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status_code, media_type="application/json")


_REFUSED: Final = "The agent's key is needed: send Authorization: Bearer KEY."


class AgentKeyMiddleware:
    """Refuses requests without the agent's key."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._digest = digest_of(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin_record(scope)
        shown = shown_key(scope["headers"])
        # Digests are compared, so that the time reveals nothing of the key, not even its length.
        if shown is None or not hmac.compare_digest(digest_of(shown), self._digest):
            refusal = Refusal("invalid_api_key", _REFUSED)
            await error_response(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)


logger = logging.getLogger(__name__)

# Each gateway has a few connections: one for its turn, and one for each other request.
_MOST_CONNECTIONS: Final = 256
_MOST_FROM_ONE_ADDRESS: Final = 64
_CLOSE_CONNECTIONS_S: Final = 1


class AgentTerms(Struct, frozen=True):
    """The terms of an agent. `budget_bytes` are for all ranks together. Without a turn of their
    gateway ranks live for `lease_s`.
    """

    budget_bytes: int
    lease_s: float


def run(
    terms: AgentTerms,
    state_dir: StateDir,
    listener: socket.socket,
    key: str,
    certificates: Certificates,
) -> None:
    """Serve until SIGTERM or SIGINT, then end all ranks."""
    records = WorkerRecords(state_dir.workers)
    sweep(records)

    async def serve() -> None:
        log = WorkerLog(state_dir.ranks_log_path)
        try:
            sessions = Sessions(terms.budget_bytes, terms.lease_s, log, records)
            await _serve(sessions, listener, key, certificates)
        finally:
            log.close()

    uvloop.run(serve())
    state_dir.release()


async def _serve(
    sessions: Sessions, listener: socket.socket, key: str, certificates: Certificates
) -> None:
    Faults().watch(asyncio.get_running_loop())
    limiter = ConnectionLimiter(_capacity, lambda: _MOST_FROM_ONE_ADDRESS)
    app = Starlette(
        routes=ROUTES,
        exception_handlers={
            Refusal: on_refusal,
            HTTPException: on_http_exception,
            Exception: on_defect,
        },
    )
    app.state.sessions = sessions
    signals: asyncio.Queue[int] = asyncio.Queue()
    handshakes = Tasks("connections")
    server = UvicornServer(
        uvicorn.Config(
            AgentKeyMiddleware(app, key),
            http=functools.partial(  # type: ignore[arg-type]
                Handshake,
                Connection,
                limiter=limiter,
                context=certificates.context,
                tasks=handshakes,
            ),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            timeout_graceful_shutdown=_CLOSE_CONNECTIONS_S,
        ),
        signals,
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await server.until_started(serving)
    background = Tasks("agent's server")
    limiter.watch(background)
    sessions.begin()
    # Scripts wait for this line. No other line goes to stdout.
    host, port = listener.getsockname()[:2]
    print(f"Bulkhead's agent serves on {near_url(host, port, tls=True)}", flush=True)
    signalled = asyncio.create_task(signals.get())
    await asyncio.wait({serving, signalled}, return_when=asyncio.FIRST_COMPLETED)
    if signalled.done():
        logger.info("Received %s", signal.Signals(signalled.result()).name)
    signalled.cancel()
    await sessions.end()
    server.should_exit = True
    await handshakes.cancel_all()
    await serving
    await background.cancel_all()
    logger.info("Stopped")


def _capacity() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return capacity(
        _MOST_CONNECTIONS,
        sys.maxsize if files == resource.RLIM_INFINITY else files,
        MOST_RANKS,
        passes=False,
    )
