"""The routes on which only commands' servers and upstreams answer."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.generation.model_call import ModelCall
from gateway.http.passing.command_calls import CommandCall
from gateway.http.passing.outbound import OutboundRequest
from gateway.http.passing.pass_on import pass_form, pass_on, passing
from gateway.http.wire.bodies import read_body, read_json
from gateway.http.wire.openapi import EVENT_STREAM, GENERATES, Operation, Routes
from gateway.models.fleet import Fleet
from gateway.requests import refusals
from gateway.system.refusal import Refusal

routes = Routes("OpenAI")


class SpeechBody(Struct):
    """The fields that matter here; the server gets all of them."""

    model: str
    stream: bool | None = None


@passing
async def _refuse(http: HttpRequest) -> Response:
    """Raises: Refusal: the model's requests aren't passed on."""
    asked = await read_json(http, SpeechBody)
    raise refusals.passes_nothing(ModelCall(http, asked.model, passes=None).model.id)


_PREFIX: Final = "/servers/"


async def ask_server(http: HttpRequest) -> Response:
    """Ask a command's server on a path of its own."""
    fleet: Fleet = http.app.state.fleet
    path: str = http.scope["path"][len(_PREFIX) :]
    names = sorted(fleet.roster.configured, key=len, reverse=True)
    model = next((name for name in names if path.startswith(f"{name}/")), path.partition("/")[0])
    call = CommandCall(http, model)
    rest = path[len(model) :]
    if not any(
        rest == allowed or rest.startswith(allowed.rstrip("/") + "/")
        for allowed in call.model.settings.paths
    ):
        raise Refusal(
            "not_found",
            f"{rest or '/'} of {model!r} isn't passed on: its key paths names the paths that are.",
        )
    body = await read_body(http)
    return pass_on(call, OutboundRequest(http, rest, http.scope["query_string"], body))


for _path, _summary in (
    ("/v1/audio/speech", "Speak a text"),
    ("/v1/images/generations", "Make pictures"),
):
    routes.post(
        _path, Operation(_summary, body=SpeechBody, stream=EVENT_STREAM, refusals=GENERATES)
    )(_refuse)
for _path, _summary in (
    ("/v1/audio/transcriptions", "Write down what is said"),
    ("/v1/audio/translations", "Write down in English what is said"),
    ("/v1/images/edits", "Change pictures"),
):
    routes.post(_path, Operation(_summary, stream=EVENT_STREAM, refusals=GENERATES))(pass_form)
_SERVER: Final = Operation(
    "Ask a command's server on a path of its own",
    stream=EVENT_STREAM,
    refusals=(*GENERATES, "not_found"),
    counts=True,
)
for _declare in (routes.get, routes.post, routes.delete):
    _declare("/servers/{path:path}", _SERVER)(ask_server)
