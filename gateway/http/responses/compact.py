"""POST /v1/responses/compact: a summary in the place of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.bodies import beside_the_loop, read_json
from gateway.http.openapi.operation import GENERATES, Described, Operation
from gateway.http.responses.asked import build, gather
from gateway.http.responses.bodies import ResponseBody
from gateway.http.responses.echo import skeleton
from gateway.http.responses.items import ItemBody, encode_items
from gateway.http.responses.shape import UsageBody
from gateway.http.responses.writer import Form, ResponseFormat
from gateway.requests.choices import Choice
from gateway.requests.request import Request
from protocol.answers import Usage


class Compacted(Struct):
    """`output` is the input of what goes on: what users and the system said, then the summary."""

    id: str
    created_at: int
    output: list[Any]
    usage: UsageBody
    object: Literal["response.compaction"] = "response.compaction"


async def compact(http_request: HttpRequest) -> Response:
    """Nothing is stored."""
    body = await read_json(http_request, ResponseBody)
    asked = await gather(http_request, body)
    call = asked.call
    said = [each for each in asked.items if each.kind == "message" and each.role != "assistant"]
    asked.items.append(ItemBody(type="compaction_trigger"))
    asked.names.append("input")
    requests = call.requests(body.generation(), [await build(asked)], "input")
    form = Form(skeleton(body, call.model.id, asked.response_id), False, compacts=True)
    left = await beside_the_loop(call.share.size_bytes, encode_items, said)
    return call.answer(requests, _Format(form, requests[0], left))


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
