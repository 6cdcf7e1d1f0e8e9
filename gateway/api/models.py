"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.supervise.compartment import Compartment
from gateway.supervise.fleet import Fleet


class ModelBody(Struct):
    """OpenAI's model object, and the state."""

    id: str
    object: str
    created: int
    owned_by: str
    state: str


class ModelList(Struct):
    object: str
    data: list[ModelBody]


async def list_models(request: Request) -> Response:
    fleet: Fleet = request.app.state.fleet
    data = [_body(fleet, each) for each in fleet.roster.configured.values()]
    return _json(ModelList("list", data))


async def show_model(request: Request) -> Response:
    fleet: Fleet = request.app.state.fleet
    return _json(_body(fleet, fleet.roster.find(request.path_params["model_id"])))


def _body(fleet: Fleet, compartment: Compartment) -> ModelBody:
    return ModelBody(
        compartment.model.id, "model", int(fleet.started_at), "bulkhead", compartment.state
    )


def _json(body: Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


routes = [
    Route("/v1/models", list_models),
    Route("/v1/models/{model_id:path}", show_model),
]
