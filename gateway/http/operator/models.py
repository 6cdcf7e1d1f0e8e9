"""The models: the list of OpenAI and Anthropic, and the lines that connect clients to a model."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.access.caller import Caller, NeededKey
from gateway.access.keys import ApiKeys
from gateway.clients.agents import Connection
from gateway.clients.lines import Lines, all_lines
from gateway.config.model_settings import ModelSettings
from gateway.http.operator.status import model_status, state_of
from gateway.http.wire.auth import caller_of
from gateway.http.wire.bodies import json_response
from gateway.http.wire.command_bodies import ModelBody, ModelListing
from gateway.http.wire.openapi import NAMES_MODEL, Operation, Query, Routes
from gateway.memory.estimator import UnreadableFilesError
from gateway.memory.fitting import LONGEST_CONTEXT_TOKENS, Outline
from gateway.models.fleet import Fleet
from gateway.models.model_supervisor import ModelSupervisor
from gateway.upstreams.upstreams import Way

routes = Routes("OpenAI")

_LISTING: Final = Operation("The models", answer=ModelListing, reads=True)


@routes.get("/v1/models/", _LISTING)
@routes.get("/v1/models", _LISTING)
async def list_models(request: HttpRequest) -> Response:
    fleet: Fleet = request.app.state.fleet
    caller = caller_of(request)
    data = [_body(fleet, model, caller) for model in fleet.roster.visible(caller)]
    data += [offered(fleet, way) for way in fleet.upstreams.visible(caller)]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return json_response(ModelListing("list", data, False, first, last))


@routes.get(
    "/v1/models/{model_id:path}",
    Operation("A model", answer=ModelBody, refusals=NAMES_MODEL, reads=True),
)
async def show_model(request: HttpRequest) -> Response:
    fleet: Fleet = request.app.state.fleet
    caller = caller_of(request)
    model_id = request.path_params["model_id"]
    if not fleet.roster.has(model_id):
        for way in await fleet.upstreams.ways(model_id, caller):
            if way.offer is not None:
                return json_response(offered(fleet, way))
    return json_response(_body(fleet, fleet.roster.find(model_id, caller), caller))


def _body(fleet: Fleet, supervisor: ModelSupervisor, caller: Caller) -> ModelBody:
    status = model_status(supervisor, fleet)
    sees_prompts = caller.admin or fleet.settings.prompt_cache.shared
    return ModelBody(
        id=status.id,
        aliases=supervisor.model.settings.aliases,
        object="model",
        created=int(fleet.started_at),
        owned_by="bulkhead",
        type="model",
        display_name=status.id,
        created_at=datetime.fromtimestamp(int(fleet.started_at), UTC).isoformat(),
        input_modalities=["text", "image"] if supervisor.model.settings.pictures else ["text"],
        state=status.state,
        reason=status.reason,
        max_model_len=status.context_tokens,
        last_used_at=status.last_used_at,
        abilities=None if supervisor.model.is_command else supervisor.traffic.abilities,
        floor_bytes=status.floor_bytes,
        lent_bytes=status.lent_bytes,
        wanted_bytes=status.wanted_bytes,
        prompt_cache=status.prompt_cache if sees_prompts else None,
        active_requests=status.active_requests,
        queue_depth=status.queue_depth,
        via=(fleet.upstreams.instance,),
        default_parameters=supervisor.model.settings.defaults.given,
        check=status.check,
    )


def offered(fleet: Fleet, way: Way) -> ModelBody:
    """A model of an upstream in the list. Its aliases are names that lead to it without the name of
    the upstream, though perhaps to other upstreams that have it as well.
    """
    offer, upstream = way.offer, way.upstream
    assert offer is not None
    state, reason = state_of(way)
    return ModelBody(
        id=way.id,
        aliases=tuple(name for name in offer.names if not fleet.roster.has(name)),
        object="model",
        created=int(fleet.started_at),
        owned_by=upstream.name,
        type="model",
        display_name=way.id,
        created_at=datetime.fromtimestamp(int(fleet.started_at), UTC).isoformat(),
        input_modalities=list(offer.input_modalities or ("text",)),
        state=state,
        reason=reason,
        max_model_len=offer.max_model_len,
        last_used_at=None,
        abilities=offer.abilities,
        floor_bytes=None,
        lent_bytes=None,
        wanted_bytes=None,
        prompt_cache=None,
        active_requests=offer.active_requests,
        queue_depth=offer.queue_depth,
        via=(fleet.upstreams.instance, *offer.via),
    )


# A page shows no keys: each person has one.
_A_KEY = "YOUR_KEY"


class ClientLines(Struct):
    """The lines of every client for a model, with the context that they name."""

    model: str
    context_tokens: int
    clients: list[Lines]


@routes.get(
    "/admin/v1/models/{model_id:path}/clients",
    Operation(
        "Lines that connect agents and editors",
        answer=ClientLines,
        query=[Query("url", "string", "The gateway's address for these clients; else as asked.")],
        refusals=NAMES_MODEL,
        key=NeededKey.ADMIN,
    ),
)
async def list_lines(request: HttpRequest) -> Response:
    fleet: Fleet = request.app.state.fleet
    keys: ApiKeys = request.app.state.keys
    await keys.look()
    asked = await _asked(fleet, request.path_params["model_id"], caller_of(request))
    url = (request.query_params.get("url") or str(request.base_url)).rstrip("/")
    key = _A_KEY if keys.required else None
    connection = msgspec.structs.replace(asked, url=url, key=key)
    return json_response(ClientLines(asked.model, asked.context_tokens, all_lines(connection)))


async def _asked(fleet: Fleet, name: str, caller: Caller) -> Connection:
    """The model, by the name to ask for it, without URL and key.

    Raises: Refusal: there is no such model.
    """
    if not fleet.roster.has(name):
        for way in await fleet.upstreams.ways(name, caller):
            if way.offer is not None:
                tokens = way.offer.max_model_len or ModelSettings("").context_tokens
                return Connection("", name, tokens, of_upstream=True)
    supervisor = fleet.roster.find(name, caller)
    outline = await _outline(fleet, supervisor, LONGEST_CONTEXT_TOKENS)
    return Connection(
        "",
        supervisor.model.id,
        await _context_tokens(fleet, supervisor),
        own_context_tokens=0 if outline is None else outline.context_tokens,
    )


async def _context_tokens(fleet: Fleet, supervisor: ModelSupervisor) -> int:
    """The context in force; of a model that isn't loaded, the one it would be loaded with."""
    worker = supervisor.worker
    if worker is not None and worker.report.context_tokens is not None:
        return worker.report.context_tokens
    configured_tokens = supervisor.model.settings.context_tokens
    outline = await _outline(fleet, supervisor, configured_tokens)
    return configured_tokens if outline is None else outline.granted_context_tokens


async def _outline(
    fleet: Fleet, supervisor: ModelSupervisor, context_tokens: int
) -> Outline | None:
    """The estimate with this context; None if the files don't tell."""
    try:
        return (await fleet.scheduler.forecast(supervisor.model_memory, context_tokens)).outline
    except UnreadableFilesError:
        return None
