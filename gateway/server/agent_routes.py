"""What gateways ask of an agent over HTTP."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
from typing import Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway import VERSION
from gateway.http.bodies import read_json
from gateway.server.agent_sessions import Sessions
from gateway.system.lane import Lane
from gateway.system.memory import back_end, host_memory
from gateway.system.memory_reading import FootprintError
from gateway.system.refusal import Refusal
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
    # It may have ended while the body came.
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
    # It may have ended while the body came.
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
    """Until the connection is gone. The body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _sessions(request: Request) -> Sessions:
    sessions: Sessions = request.app.state.sessions
    return sessions


def _json(body: Struct, status_code: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status_code, media_type="application/json")
