"""The route of searches on the hub."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.wire.bodies import json_response
from gateway.http.wire.openapi import Operation, Query, Routes
from gateway.library.findings import Findings
from gateway.library.hub_search import HubSearch

search_routes = Routes("operation")


@search_routes.get(
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
    hub: HubSearch = request.app.state.hub_search
    return json_response(await hub.find(request.query_params.get("q", "")))
