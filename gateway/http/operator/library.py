"""Routes of models: /v1/models, the models on this machine's disks, and downloads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.access.caller import Caller
from gateway.http.operator.status import model_status, state_of
from gateway.http.wire.auth import caller_of
from gateway.http.wire.bodies import event_stream, json_response, read_json
from gateway.http.wire.command_bodies import ModelBody, ModelListing
from gateway.http.wire.errors import invalid
from gateway.http.wire.openapi import EVENT_STREAM, NAMES_MODEL, Operation, Query, Routes
from gateway.library.catalogue import EntryList, ModelOnDisk, Removed
from gateway.library.library import Library
from gateway.library.pulls import Pull, Pulls, PullStatus
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet
from gateway.upstreams.upstreams import Way

model_routes = Routes("OpenAI")
library_routes = Routes("operation")


@model_routes.get("/v1/models/", Operation("The models", answer=ModelListing))
@model_routes.get("/v1/models", Operation("The models", answer=ModelListing))
async def list_models(request: HttpRequest) -> Response:
    fleet: Fleet = request.app.state.fleet
    caller = caller_of(request)
    data = [_body(fleet, each, caller) for each in fleet.roster.visible(caller)]
    data += [offered(fleet, each) for each in fleet.upstreams.visible(caller)]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return json_response(ModelListing("list", data, False, first, last))


@model_routes.get(
    "/v1/models/{model_id:path}", Operation("A model", answer=ModelBody, refusals=NAMES_MODEL)
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


def _body(fleet: Fleet, compartment: Compartment, caller: Caller) -> ModelBody:
    status = model_status(compartment, fleet)
    sees_prompts = caller.admin or fleet.settings.prompt_cache.shared
    return ModelBody(
        id=status.id,
        aliases=compartment.model.settings.aliases,
        object="model",
        created=int(fleet.started_at),
        owned_by="bulkhead",
        type="model",
        display_name=status.id,
        created_at=datetime.fromtimestamp(int(fleet.started_at), UTC).isoformat(),
        input_modalities=["text", "image"] if compartment.model.settings.pictures else ["text"],
        state=status.state,
        reason=status.reason,
        max_model_len=status.context_tokens,
        last_used_at=status.last_used_at,
        abilities=None if compartment.model.is_command else compartment.traffic.abilities,
        floor_bytes=status.floor_bytes,
        lent_bytes=status.lent_bytes,
        wanted_bytes=status.wanted_bytes,
        prompt_cache=status.prompt_cache if sees_prompts else None,
        active_requests=status.active_requests,
        queue_depth=status.queue_depth,
        via=(fleet.upstreams.instance,),
        default_parameters=compartment.model.settings.defaults.given,
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
        aliases=tuple(each for each in offer.names if not fleet.roster.has(each)),
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


@library_routes.get("/library", Operation("The models on the disks", answer=EntryList))
async def list_entries(request: HttpRequest) -> Response:
    return json_response(EntryList(await _library(request).entries()))


@library_routes.get(
    "/library/{name:path}",
    Operation("A model on the disks", answer=ModelOnDisk, refusals=NAMES_MODEL),
)
async def show(request: HttpRequest) -> Response:
    return json_response(await _library(request).find(request.path_params["name"]))


@library_routes.get(
    "/removals/{name:path}",
    Operation("Check whether a model's files can be removed", answer=Removed, refusals=NAMES_MODEL),
)
async def removal(request: HttpRequest) -> Response:
    """Answer or refuse as `remove` would. Nothing is removed."""
    library = _library(request)
    entry = await library.find(request.path_params["name"])
    await library.check_removable(entry)
    return json_response(Removed(entry.source, entry.freed_bytes))


@library_routes.delete(
    "/library/{name:path}",
    Operation("Remove a model's files", answer=Removed, refusals=NAMES_MODEL),
)
async def remove(request: HttpRequest) -> Response:
    if "dry_run" in request.query_params:
        # The client only means to ask whether the files can be removed.
        raise invalid(
            "dry_run: nothing was removed. GET /admin/v1/removals/NAME answers without removing.",
            "dry_run",
        )
    library = _library(request)
    entry = await library.find(request.path_params["name"])
    await library.remove(entry)
    return json_response(Removed(entry.source, entry.freed_bytes))


def _library(request: HttpRequest) -> Library:
    library: Library = request.app.state.library
    return library


_COMMENT_S: Final = 10.0
_COMMENT: Final = b": nothing new\n\n"


class NewPull(Struct, forbid_unknown_fields=True):
    """`model` is OWNER/NAME or OWNER/NAME:QUANT. With `force` a model that will not fit is
    downloaded too.
    """

    model: str
    force: bool = False


class PullList(Struct):
    pulls: list[PullStatus]


@library_routes.post(
    "/pulls",
    Operation(
        "Get a model from the hub",
        body=NewPull,
        others={202: PullStatus},
        refusals=("queue_full", "shutting_down"),
    ),
)
async def begin(request: HttpRequest) -> Response:
    """Begin a download and answer 202. If a download of the model runs, answer with that one."""
    wanted = await read_json(request, NewPull)
    fleet: Fleet = request.app.state.fleet
    fleet.check_serves()
    return json_response(_pulls(request).begin(wanted.model, force=wanted.force).status, 202)


@library_routes.get("/pulls", Operation("The pulls", answer=PullList))
async def list_pulls(request: HttpRequest) -> Response:
    """List the downloads that run, and the last ones that have ended."""
    return json_response(PullList(_pulls(request).statuses))


@library_routes.get(
    "/pulls/{pull_id}",
    Operation(
        "The progress of a pull",
        answer=PullStatus,
        events=PullStatus,
        stream=EVENT_STREAM,
        query=[Query("follow", "string", "0: answer once, in JSON")],
        refusals=("not_found",),
    ),
)
async def follow(request: HttpRequest) -> Response:
    """Send an event for each change until the download has ended. With `follow=0` answer with one
    JSON object.
    """
    pull = _pulls(request).find(request.path_params["pull_id"])
    if request.query_params.get("follow", "1") in ("0", "false"):
        return json_response(pull.status)
    return event_stream(_changes(pull))


@library_routes.delete(
    "/pulls/{pull_id}", Operation("Cancel a pull", answer=PullStatus, refusals=("not_found",))
)
async def cancel(request: HttpRequest) -> Response:
    """Answer when the process of the download has ended. The files so far are kept, so that another
    download can go on with them.
    """
    pull = _pulls(request).find(request.path_params["pull_id"])
    await _pulls(request).cancel(pull)
    return json_response(pull.status)


async def _changes(pull: Pull) -> AsyncIterator[bytes]:
    while True:
        status = pull.status
        yield b"event: pull\ndata: %s\n\n" % msgspec.json.encode(status)
        if status.over:
            return
        while pull.status is status:
            try:
                async with asyncio.timeout(_COMMENT_S):
                    await pull.next_change()
            except TimeoutError:
                yield _COMMENT


def _pulls(request: HttpRequest) -> Pulls:
    pulls: Pulls = request.app.state.pulls
    return pulls
