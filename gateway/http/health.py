"""GET /livez, /readyz and /health. No probe waits for a worker, except a deep check."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from gateway import VERSION
from gateway.http.auth import caller_of
from gateway.http.model_call import deadline_s
from gateway.http.openapi import NAMES_MODEL, Described, Operation, Query
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet, Phase
from gateway.models.lifecycle import State
from gateway.requests.request import Request, Terms
from gateway.system.refusal import Refusal
from gateway.system.tasks import Fault
from protocol.requests import Embed, Generate, Sampling, Task, TextPrompt

_DEEP_DEADLINE_S: Final = 10.0
_DEGRADED: Final = (State.FAILED, State.BACKOFF)


class ModelHealth(Struct):
    id: str
    state: str
    last_step_age_s: float | None


class DeepHealth(Struct):
    """Whether a model generates. `seconds` is the time until its token came, or until the check
    gave up.
    """

    model: str
    ok: bool
    seconds: float
    reason: str | None


class Health(Struct):
    status: Literal["ok", "degraded"]
    version: str
    uptime_s: float
    models: list[ModelHealth]
    faults: list[Fault]
    deep: DeepHealth | UnsetType = UNSET


async def livez(_request: HttpRequest) -> Response:
    return PlainTextResponse("ok\n")


async def readyz(request: HttpRequest) -> Response:
    fleet: Fleet = request.app.state.fleet
    return PlainTextResponse(
        f"{fleet.phase}\n", status_code=200 if fleet.phase is Phase.SERVING else 503
    )


async def health(request: HttpRequest) -> Response:
    fleet: Fleet = request.app.state.fleet
    caller = caller_of(request)
    compartments = fleet.roster.visible(caller)
    deep: DeepHealth | UnsetType = UNSET
    if (name := request.query_params.get("deep")) is not None:
        if not caller.admin:
            raise Refusal(
                "permission_denied", "A deep check runs the model, so it needs the admin key."
            )
        limit_s = min(deadline_s(request, _DEEP_DEADLINE_S), _DEEP_DEADLINE_S)
        deep = await _generate_token(fleet, fleet.roster.find(name, caller), limit_s)
    failed = deep is not UNSET and not deep.ok
    faults = fleet.faults.recent(time.time())
    body = Health(
        status="degraded"
        if failed or faults or any(each.state in _DEGRADED for each in compartments)
        else "ok",
        version=VERSION,
        uptime_s=fleet.uptime_s,
        models=[
            ModelHealth(
                each.model.id,
                each.state,
                None if each.worker is None else each.worker.report.last_step_age_s,
            )
            for each in compartments
        ],
        faults=faults if caller.admin else [],
        deep=deep,
    )
    return Response(
        msgspec.json.encode(body),
        media_type="application/json",
        status_code=503 if failed else 200,
    )


async def _generate_token(fleet: Fleet, compartment: Compartment, limit_s: float) -> DeepHealth:
    """Have a loaded model generate one token, or a vector or score if it generates no text. A model
    that isn't loaded stays unloaded.
    """
    began = time.monotonic()
    reason: str | None = None
    if compartment.state is not State.READY:
        reason = f"it is {compartment.state}"
    else:
        task = _probe(compartment)
        generation = Request(task, Terms(deadline_s=limit_s, probe=True), fleet.now())
        try:
            fleet.submit(compartment, generation)
            async with asyncio.timeout(limit_s):
                while not generation.over:
                    await generation.take()
        except Refusal as refusal:
            reason = refusal.message
        except TimeoutError:
            reason = f"no token within {limit_s:g} s"
        finally:
            if not generation.over:
                compartment.traffic.cancel(generation)
    return DeepHealth(compartment.model.id, reason is None, time.monotonic() - began, reason)


def _probe(compartment: Compartment) -> Task:
    hello, request_id = TextPrompt("Hello"), uuid.uuid4().hex
    abilities = compartment.traffic.abilities
    if abilities is None or "text" in abilities:
        return Generate(
            request_id=request_id,
            prompt=hello,
            sampling=Sampling(seed=0, temperature=0.0),
            max_tokens=1,
            ignore_eos=True,
        )
    query = None if "embedding" in abilities else "Hello"
    return Embed(request_id=request_id, inputs=(hello,), query=query)


_TEXT: Final = "text/plain"
_DEEP: Final = Query("deep", "string", "A loaded model, which is to generate one token.")

routes = [
    Described("/livez", livez, Operation(summary="Whether it turns", tag="probes", answer=_TEXT)),
    Described(
        "/readyz",
        readyz,
        Operation(
            summary="Whether requests are taken", tag="probes", answer=_TEXT, others={503: _TEXT}
        ),
    ),
    Described(
        "/health",
        health,
        Operation(
            summary="How the models are",
            tag="probes",
            answer=Health,
            query=[_DEEP],
            refusals=NAMES_MODEL,
            others={503: Health},
        ),
    ),
]
