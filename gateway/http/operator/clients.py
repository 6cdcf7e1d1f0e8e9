"""The settings of clients, as lines to copy."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.access.caller import Caller
from gateway.access.keys import ApiKeys
from gateway.clients.connection import Connection
from gateway.clients.lines import Lines, all_lines
from gateway.config.model_settings import ModelSettings
from gateway.http.wire.auth import caller_of
from gateway.http.wire.bodies import json_response
from gateway.http.wire.openapi import NAMES_MODEL, Operation, Query, Routes
from gateway.memory.estimator import UnreadableFilesError
from gateway.memory.fitting import LONGEST_CONTEXT_TOKENS, Outline
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet

client_routes = Routes("operation")

# A page shows no keys: each person has one.
_A_KEY = "YOUR_KEY"


class ClientLines(Struct):
    """The lines of every client for a model, with the context that they name."""

    model: str
    context_tokens: int
    clients: list[Lines]


@client_routes.get(
    "/models/{model_id:path}/clients",
    Operation(
        "Lines that connect agents and editors",
        answer=ClientLines,
        query=[Query("url", "string", "The gateway's address for these clients; else as asked.")],
        refusals=NAMES_MODEL,
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
    compartment = fleet.roster.find(name, caller)
    own = await _outline(fleet, compartment, LONGEST_CONTEXT_TOKENS)
    return Connection(
        "",
        compartment.model.id,
        await _context_tokens(fleet, compartment),
        own_context_tokens=0 if own is None else own.context_tokens,
    )


async def _context_tokens(fleet: Fleet, compartment: Compartment) -> int:
    """The context in force; of a model that isn't loaded, the one it would be loaded with."""
    worker = compartment.worker
    if worker is not None and worker.report.context_tokens is not None:
        return worker.report.context_tokens
    configured_tokens = compartment.model.settings.context_tokens
    outline = await _outline(fleet, compartment, configured_tokens)
    return configured_tokens if outline is None else outline.granted_context_tokens


async def _outline(fleet: Fleet, compartment: Compartment, context_tokens: int) -> Outline | None:
    """The estimate with this context; None if the files don't tell."""
    try:
        return (await fleet.scheduler.forecast(compartment.model_memory, context_tokens)).outline
    except UnreadableFilesError:
        return None
