"""POST /v1/responses/input_tokens: how many tokens the prompt of a response has."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.bodies import read_json
from gateway.http.count_format import CountFormat
from gateway.http.openapi.operation import GENERATES, Described, Operation
from gateway.http.responses.asked import build, gather
from gateway.http.responses.bodies import ResponseBody
from gateway.http.responses.truncation import counting


class InputTokens(Struct):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


async def count(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, ResponseBody)
    asked = await gather(http_request, body)
    requests = asked.call.requests(body.generation(), [counting(await build(asked))], "input")
    form = CountFormat(lambda usage: msgspec.json.encode(InputTokens(usage.prompt_tokens)))
    return asked.call.answer(requests, form)


_COUNT: Final = Operation(
    summary="Count the tokens of a response's prompt",
    tag="OpenAI",
    body=ResponseBody,
    answer=InputTokens,
    refusals=(*GENERATES, "not_found"),
)

routes = [Described("/v1/responses/input_tokens", count, _COUNT, method="POST")]
