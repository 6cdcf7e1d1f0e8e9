"""GET /livez, /readyz and /health: for probes, so none of them waits for a worker."""

from __future__ import annotations

import time
from typing import Literal

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gateway.supervise.fleet import Fleet, Phase
from gateway.supervise.lifecycle import State
from gateway.version import VERSION


class ModelHealth(Struct):
    id: str
    state: str
    last_step_age_s: float | None


class Health(Struct):
    status: Literal["ok", "degraded"]
    version: str
    uptime_s: float
    models: list[ModelHealth]


async def livez(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def readyz(request: Request) -> Response:
    fleet: Fleet = request.app.state.fleet
    return PlainTextResponse(
        f"{fleet.phase}\n", status_code=200 if fleet.phase is Phase.SERVING else 503
    )


async def health(request: Request) -> Response:
    fleet: Fleet = request.app.state.fleet
    compartments = fleet.compartments.values()
    body = Health(
        status="degraded" if any(each.state is State.FAILED for each in compartments) else "ok",
        version=VERSION,
        uptime_s=time.time() - fleet.started_at,
        models=[
            ModelHealth(
                each.model.id,
                each.state,
                None if each.worker is None else each.worker.last_step_age_s,
            )
            for each in compartments
        ],
    )
    return Response(msgspec.json.encode(body), media_type="application/json")


routes = [Route("/livez", livez), Route("/readyz", readyz), Route("/health", health)]
