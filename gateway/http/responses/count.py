"""POST /v1/responses/input_tokens: how many tokens the prompt of a response has."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.answer import Answer
from gateway.http.bodies import beside_the_loop, read_json
from gateway.http.callers import caller_of
from gateway.http.count_format import CountFormat
from gateway.http.openapi.operation import GENERATES, Described, Operation
from gateway.http.responses.asked import gather, generate_of
from gateway.http.responses.bodies import ResponseBody
from gateway.http.responses.shape import new_id
from gateway.http.sampling import new_requests
from gateway.http.supported import check_supported
from gateway.models.choices import submit_all
from gateway.models.fleet import Fleet
from gateway.requests.share import share_of


class InputTokens(Struct):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


async def count(request: HttpRequest) -> Response:
    fleet: Fleet = request.app.state.fleet
    body = await read_json(request, ResponseBody)
    check_supported(body, "responses")
    compartment = fleet.roster.find(body.model, caller_of(request))
    asked = await gather(request, fleet, compartment, body, new_id())
    size = share_of(request.scope).size_bytes
    generate = await beside_the_loop(size, generate_of, asked, compartment, 0)
    # Nothing is computed for an answer of no token.
    counting = msgspec.structs.replace(generate, max_tokens=0, constraint=None)
    requests = new_requests(request, fleet, body.generation(), [counting], "input")
    submit_all(fleet, compartment, requests)
    return Answer(compartment, requests, CountFormat(InputTokens), stream=False)


_COUNT: Final = Operation(
    summary="Count the tokens of a response's prompt",
    tag="OpenAI",
    body=ResponseBody,
    answer=InputTokens,
    refusals=(*GENERATES, "not_found"),
)

routes = [Described("/v1/responses/input_tokens", count, _COUNT, method="POST")]
