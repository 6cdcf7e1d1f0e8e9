"""POST /v1/responses/compact: a summary in the place of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.answer import Answer, Choice
from gateway.http.bodies import beside_the_loop, read_json
from gateway.http.callers import caller_of
from gateway.http.openapi.operation import GENERATES, Described, Operation
from gateway.http.responses.asked import gather, generate_of
from gateway.http.responses.bodies import ResponseBody
from gateway.http.responses.echo import skeleton
from gateway.http.responses.items import ItemBody, encode_items
from gateway.http.responses.shape import UsageBody, new_id
from gateway.http.responses.writer import Form, ResponseFormat
from gateway.http.sampling import new_requests
from gateway.http.supported import check_supported
from gateway.models.choices import submit_all
from gateway.models.fleet import Fleet
from gateway.requests.request import Request
from gateway.requests.share import share_of
from protocol.answers import Usage


class Compacted(Struct):
    """`output` is the input of what goes on: what users and the system said, then the summary."""

    id: str
    created_at: int
    output: list[Any]
    usage: UsageBody
    object: Literal["response.compaction"] = "response.compaction"


async def compact(request: HttpRequest) -> Response:
    """Nothing is stored."""
    fleet: Fleet = request.app.state.fleet
    body = await read_json(request, ResponseBody)
    check_supported(body, "responses")
    compartment = fleet.roster.find(body.model, caller_of(request))
    response_id = new_id()
    asked = await gather(request, fleet, compartment, body, response_id)
    said = [each for each in asked.items if each.kind == "message" and each.role != "assistant"]
    asked.items.append(ItemBody(type="compaction_trigger"))
    asked.names.append("input")
    size = share_of(request.scope).size_bytes
    generate = await beside_the_loop(size, generate_of, asked, compartment, 0)
    requests = new_requests(request, fleet, body.generation(), [generate], "input")
    form = Form(skeleton(body, compartment.model.id, response_id), False, compacts=True)
    left = await beside_the_loop(size, encode_items, said)
    submit_all(fleet, compartment, requests)
    return Answer(compartment, requests, _Format(form, requests[0], left), stream=False)


class _Format(ResponseFormat):
    def __init__(self, form: Form, request: Request, left: bytes) -> None:
        """`left` are the items that stay, as text."""
        super().__init__(form, request)
        self._left = left

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        super().whole(choices, usage)
        response = self._response
        output = [*msgspec.json.decode(self._left, type=list[Raw]), *response.output]
        return msgspec.json.encode(
            Compacted(response.id, response.created_at, output, UsageBody.of(usage))
        )


_COMPACT: Final = Operation(
    summary="Sum up a conversation",
    tag="OpenAI",
    body=ResponseBody,
    answer=Compacted,
    refusals=(*GENERATES, "not_found"),
)

routes = [Described("/v1/responses/compact", compact, _COMPACT, method="POST")]
