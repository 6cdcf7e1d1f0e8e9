"""/admin/v1/library: the models on this machine's disks."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.openapi.operation import NAMES_MODEL, Described, Operation, Query
from gateway.library.catalogue import Entry
from gateway.library.library import Library


class EntryList(Struct):
    models: list[Entry]


class Removed(Struct):
    """What it was, and the bytes that are free without it; with `dry_run` it is still there."""

    source: str
    reclaimed_bytes: int
    dry_run: bool


async def list_entries(request: Request) -> Response:
    return _json(EntryList(await _library(request).entries()))


async def show(request: Request) -> Response:
    return _json(await _library(request).find(request.path_params["name"]))


async def remove(request: Request) -> Response:
    """`dry_run=1` says what it would do, or why not."""
    library = _library(request)
    entry = await library.find(request.path_params["name"])
    dry_run = request.query_params.get("dry_run", "0") not in ("0", "false")
    if dry_run:
        await library.check_removable(entry)
    else:
        await library.remove(entry)
    return _json(Removed(entry.source, entry.size_bytes, dry_run))


def _library(request: Request) -> Library:
    library: Library = request.app.state.library
    return library


def _json(body: Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


_LIST: Final = Operation(summary="The models on the disks", tag="operation", answer=EntryList)
_SHOW: Final = Operation(summary="One of them", tag="operation", answer=Entry, refusals=NAMES_MODEL)
_REMOVE: Final = Operation(
    summary="Remove a model's files",
    tag="operation",
    answer=Removed,
    query=(Query("dry_run", "string", "1: say what it would do, or why not"),),
    refusals=NAMES_MODEL,
)

routes = [
    Described("/library", list_entries, _LIST),
    Described("/library/{name:path}", show, _SHOW),
    Described("/library/{name:path}", remove, _REMOVE, method="DELETE"),
]
