"""The models: /v1/models, those on this machine's disks, and downloads."""

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
from gateway.http.auth import caller_of
from gateway.http.bodies import event_stream, json_response, read_json
from gateway.http.command_bodies import ModelBody, ModelListing
from gateway.http.errors import invalid
from gateway.http.openapi import EVENT_STREAM, NAMES_MODEL, Described, Operation, Query
from gateway.http.status import model_status
from gateway.library.catalogue import EntryList, ModelOnDisk, Removed
from gateway.library.library import Library
from gateway.library.pulls import Pull, Pulls, PullStatus
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet


async def list_models(request: HttpRequest) -> Response:
    fleet: Fleet = request.app.state.fleet
    caller = caller_of(request)
    data = [_body(fleet, each, caller) for each in fleet.roster.visible(caller)]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return json_response(ModelListing("list", data, False, first, last))


async def show_model(request: HttpRequest) -> Response:
    fleet: Fleet = request.app.state.fleet
    caller = caller_of(request)
    return json_response(
        _body(fleet, fleet.roster.find(request.path_params["model_id"], caller), caller)
    )


def _body(fleet: Fleet, compartment: Compartment, caller: Caller) -> ModelBody:
    status = model_status(compartment, fleet)
    told = caller.admin or fleet.settings.prompt_cache.shared
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
        abilities=compartment.traffic.abilities,
        floor_bytes=status.floor_bytes,
        lent_bytes=status.lent_bytes,
        wanted_bytes=status.wanted_bytes,
        prompt_cache=status.prompt_cache if told else None,
    )


_LIST: Final = Operation(summary="The models", tag="OpenAI", answer=ModelListing)
_SHOW: Final = Operation(summary="A model", tag="OpenAI", answer=ModelBody, refusals=NAMES_MODEL)


async def list_entries(request: HttpRequest) -> Response:
    return json_response(EntryList(await _library(request).entries()))


async def show(request: HttpRequest) -> Response:
    return json_response(await _library(request).find(request.path_params["name"]))


async def removal(request: HttpRequest) -> Response:
    """What `remove` would do, or why it is refused."""
    library = _library(request)
    entry = await library.find(request.path_params["name"])
    await library.check_removable(entry)
    return json_response(Removed(entry.source, entry.size_bytes))


async def remove(request: HttpRequest) -> Response:
    if "dry_run" in request.query_params:
        # A client that only asks must not remove anything by mistake.
        raise invalid(
            "dry_run: nothing was removed. GET /admin/v1/removals/NAME says what would be.",
            "dry_run",
        )
    library = _library(request)
    entry = await library.find(request.path_params["name"])
    await library.remove(entry)
    return json_response(Removed(entry.source, entry.size_bytes))


def _library(request: HttpRequest) -> Library:
    library: Library = request.app.state.library
    return library


_LIST_LIBRARY: Final = Operation(
    summary="The models on the disks", tag="operation", answer=EntryList
)
_SHOW_LIBRARY: Final = Operation(
    summary="One of them", tag="operation", answer=ModelOnDisk, refusals=NAMES_MODEL
)
_REMOVE: Final = Operation(
    summary="Remove a model's files", tag="operation", answer=Removed, refusals=NAMES_MODEL
)
_REMOVAL: Final = Operation(
    summary="What removing a model's files would do, or why they can't be removed",
    tag="operation",
    answer=Removed,
    refusals=NAMES_MODEL,
)


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


async def begin(request: HttpRequest) -> Response:
    """Answers 202. A client that asks for a model that is being downloaded joins that download."""
    wanted = await read_json(request, NewPull)
    fleet: Fleet = request.app.state.fleet
    fleet.check_serves()
    return json_response(_pulls(request).begin(wanted.model, force=wanted.force).status, 202)


async def list_pulls(request: HttpRequest) -> Response:
    """The downloads that run, and the last ones that have ended."""
    return json_response(PullList(_pulls(request).statuses))


async def follow(request: HttpRequest) -> Response:
    """A stream with an event for each change until the download is over. With `follow=0` one JSON
    object.
    """
    pull = _pulls(request).find(request.path_params["pull_id"])
    if request.query_params.get("follow", "1") in ("0", "false"):
        return json_response(pull.status)
    return event_stream(_changes(pull))


async def cancel(request: HttpRequest) -> Response:
    """Answers when the process of the download has ended. What was downloaded is kept for another
    time.
    """
    pull = _pulls(request).find(request.path_params["pull_id"])
    await _pulls(request).cancel(pull)
    return json_response(pull.status)


async def _changes(pull: Pull) -> AsyncIterator[bytes]:
    while True:
        told = pull.status
        yield b"event: pull\ndata: %s\n\n" % msgspec.json.encode(told)
        if told.over:
            return
        while pull.status is told:
            try:
                async with asyncio.timeout(_COMMENT_S):
                    await pull.next_change()
            except TimeoutError:
                yield _COMMENT


def _pulls(request: HttpRequest) -> Pulls:
    pulls: Pulls = request.app.state.pulls
    return pulls


_LIST_PULLS: Final = Operation(summary="What is pulled", tag="operation", answer=PullList)
_BEGIN: Final = Operation(
    summary="Get a model from the hub",
    tag="operation",
    body=NewPull,
    others={202: PullStatus},
    refusals=("queue_full", "shutting_down"),
)
_FOLLOW: Final = Operation(
    summary="The progress of a pull",
    tag="operation",
    answer=PullStatus,
    events=PullStatus,
    stream=EVENT_STREAM,
    query=(Query("follow", "string", "0: answer once, in JSON"),),
    refusals=("not_found",),
)
_CANCEL: Final = Operation(
    summary="Cancel a pull", tag="operation", answer=PullStatus, refusals=("not_found",)
)


model_routes = [
    Described("/v1/models", list_models, _LIST),
    Described("/v1/models/", list_models, _LIST),
    Described("/v1/models/{model_id:path}", show_model, _SHOW),
]

library_routes = [
    Described("/library", list_entries, _LIST_LIBRARY),
    Described("/library/{name:path}", show, _SHOW_LIBRARY),
    Described("/library/{name:path}", remove, _REMOVE, method="DELETE"),
    Described("/removals/{name:path}", removal, _REMOVAL),
    Described("/pulls", list_pulls, _LIST_PULLS),
    Described("/pulls", begin, _BEGIN, method="POST"),
    Described("/pulls/{pull_id}", follow, _FOLLOW),
    Described("/pulls/{pull_id}", cancel, _CANCEL, method="DELETE"),
]
