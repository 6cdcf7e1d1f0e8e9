"""/admin/v1/library: the models on this machine's disks."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from gateway.http.openapi.operation import NAMES_MODEL, Described, Operation
from gateway.library.catalogue import ModelOnDisk
from gateway.library.library import Library
from gateway.system.refusal import Refusal


class EntryList(Struct):
    models: list[ModelOnDisk]


class Removed(Struct):
    """What it was, or is, and the bytes that are free without it."""

    source: str
    reclaimed_bytes: int


async def list_entries(request: Request) -> Response:
    return _json(EntryList(await _library(request).entries()))


async def show(request: Request) -> Response:
    return _json(await _library(request).find(request.path_params["name"]))


async def removal(request: Request) -> Response:
    """What `remove` would do, or why not."""
    library = _library(request)
    entry = await library.find(request.path_params["name"])
    await library.check_removable(entry)
    return _json(Removed(entry.source, entry.size_bytes))


async def remove(request: Request) -> Response:
    if "dry_run" in request.query_params:
        # What removes must not do so for who only asks.
        raise Refusal(
            "invalid_request_error",
            "dry_run: nothing was removed. GET /admin/v1/removals/NAME says what would be.",
            param="dry_run",
        )
    library = _library(request)
    entry = await library.find(request.path_params["name"])
    await library.remove(entry)
    return _json(Removed(entry.source, entry.size_bytes))


def _library(request: Request) -> Library:
    library: Library = request.app.state.library
    return library


def _json(body: Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


_LIST: Final = Operation(summary="The models on the disks", tag="operation", answer=EntryList)
_SHOW: Final = Operation(
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

routes = [
    Described("/library", list_entries, _LIST),
    Described("/library/{name:path}", show, _SHOW),
    Described("/library/{name:path}", remove, _REMOVE, method="DELETE"),
    Described("/removals/{name:path}", removal, _REMOVAL),
]
