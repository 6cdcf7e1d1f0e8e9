"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from gateway.access.caller import Caller
from gateway.http.callers import caller_of
from gateway.http.openapi.operation import NAMES_MODEL, Described, Operation
from gateway.http.status import PromptCacheStatus, model_status
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet
from protocol.life import Ability


class ModelBody(Struct):
    """OpenAI's model object and Anthropic's in one, what prompts may have (OpenRouter's name:
    "text", and "image" of those that look at pictures), the state with its reason, vLLM's name for
    the context in force, when it was last used since the gateway's start (a Unix time), and what
    the model holds of the memory: its floor, what was lent to it,
    and what it wants in all (null until the model is loaded). `abilities` are what it makes of
    texts: text, embedding, score (null until it is loaded). `prompt_cache` is what is kept of its
    prompts, which is null for keys that share none: it tells what others ask.
    """

    id: str
    aliases: tuple[str, ...]
    object: str
    created: int
    owned_by: str
    type: str
    display_name: str
    created_at: str
    input_modalities: list[str]
    state: str
    reason: str | None
    max_model_len: int | None
    last_used_at: float | None
    abilities: tuple[Ability, ...] | None
    floor_bytes: int | None
    lent_bytes: int | None
    wanted_bytes: int | None
    prompt_cache: PromptCacheStatus | None


class ModelList(Struct):
    """OpenAI's, and the rest Anthropic's: one page has them all."""

    object: str
    data: list[ModelBody]
    has_more: bool
    first_id: str | None
    last_id: str | None


async def list_models(request: Request) -> Response:
    fleet: Fleet = request.app.state.fleet
    caller = caller_of(request)
    data = [_body(fleet, each, caller) for each in fleet.roster.visible(caller)]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return _json(ModelList("list", data, False, first, last))


async def show_model(request: Request) -> Response:
    fleet: Fleet = request.app.state.fleet
    caller = caller_of(request)
    return _json(_body(fleet, fleet.roster.find(request.path_params["model_id"], caller), caller))


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


def _json(body: Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


_LIST: Final = Operation(summary="The models", tag="OpenAI", answer=ModelList)
_SHOW: Final = Operation(summary="A model", tag="OpenAI", answer=ModelBody, refusals=NAMES_MODEL)

routes = [
    Described("/v1/models", list_models, _LIST),
    Described("/v1/models/", list_models, _LIST),
    Described("/v1/models/{model_id:path}", show_model, _SHOW),
]
