"""The models on this machine's disks, downloads, and searches on the hub."""

from __future__ import annotations

from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.access.caller import NeededKey
from gateway.http.wire.bodies import event_stream, json_response, read_json, states_until_over
from gateway.http.wire.errors import invalid
from gateway.http.wire.openapi import EVENT_STREAM, NAMES_MODEL, Operation, Query, Routes
from gateway.library.catalogue import EntryList, ModelOnDisk, Removed
from gateway.library.findings import Findings
from gateway.library.library import Library
from gateway.library.pulls import Pulls, PullStatus
from gateway.models.fleet import Fleet

routes = Routes("operation", "/admin/v1", NeededKey.ADMIN)


@routes.get("/library", Operation("The models on the disks", answer=EntryList))
async def list_entries(request: HttpRequest) -> Response:
    return json_response(EntryList(await _library(request).entries()))


@routes.get(
    "/library/{name:path}",
    Operation("A model on the disks", answer=ModelOnDisk, refusals=NAMES_MODEL),
)
async def show(request: HttpRequest) -> Response:
    return json_response(await _library(request).find(request.path_params["name"]))


@routes.get(
    "/removals/{name:path}",
    Operation("Check whether a model's files can be removed", answer=Removed, refusals=NAMES_MODEL),
)
async def removal(request: HttpRequest) -> Response:
    """Answer or refuse as `remove` would. Nothing is removed."""
    library = _library(request)
    entry = await library.find(request.path_params["name"])
    await library.check_removable(entry)
    return json_response(Removed(entry.source, entry.freed_bytes))


@routes.delete(
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


class NewPull(Struct, forbid_unknown_fields=True):
    """`model` is OWNER/NAME or OWNER/NAME:QUANT. With `force` a model that will not fit is
    downloaded too.
    """

    model: str
    force: bool = False


class PullList(Struct):
    pulls: list[PullStatus]


@routes.post(
    "/pulls",
    Operation(
        "Get a model from the hub",
        body=NewPull,
        others={202: PullStatus},
        refusals=("queue_full", "shutting_down"),
    ),
)
async def start_pull(request: HttpRequest) -> Response:
    """Begin a download and answer 202. If a download of the model runs, answer with that one."""
    wanted = await read_json(request, NewPull)
    fleet: Fleet = request.app.state.fleet
    fleet.check_serves()
    return json_response(_pulls(request).start(wanted.model, force=wanted.force).status, 202)


@routes.get("/pulls", Operation("The pulls", answer=PullList, reads=True))
async def list_pulls(request: HttpRequest) -> Response:
    """List the downloads that run, and the last ones that have ended."""
    return json_response(PullList(_pulls(request).statuses))


@routes.get(
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
    return event_stream(states_until_over("pull", lambda: pull.status, pull.next_change))


@routes.delete(
    "/pulls/{pull_id}", Operation("Cancel a pull", answer=PullStatus, refusals=("not_found",))
)
async def cancel(request: HttpRequest) -> Response:
    """Answer when the process of the download has ended. The files so far are kept, so that another
    download can go on with them.
    """
    pull = _pulls(request).find(request.path_params["pull_id"])
    await _pulls(request).cancel(pull)
    return json_response(pull.status)


def _pulls(request: HttpRequest) -> Pulls:
    pulls: Pulls = request.app.state.pulls
    return pulls


@routes.get(
    "/search",
    Operation(
        "Search the hub for models",
        answer=Findings,
        query=[Query("q", "string", "Words of a name; without it the well-known models.")],
        refusals=("hub_unavailable",),
    ),
)
async def search(request: HttpRequest) -> Response:
    """Each result has its size and whether it fits: now, after unloading, or never."""
    library: Library = request.app.state.library
    return json_response(await library.search(request.query_params.get("q", "")))
