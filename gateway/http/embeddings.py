"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.bodies import beside_the_loop, read_json
from gateway.http.inputs import Inputs, parse_inputs
from gateway.http.model_call import ModelCall
from gateway.http.openapi.operation import GENERATES, Described, Operation
from gateway.http.supported import check_supported, refusing
from gateway.http.vectors import MOST_INPUTS, VectorAnswer, VectorBody, submit
from gateway.requests.progress import BYTES_PER_NUMBER, Vectors
from protocol.answers import Usage
from protocol.requests import Embed

_MOST_DIMENSIONS: Final = 1 << 16
_LONGEST_NAME: Final = 100

Role = Literal["query", "document", "search_query", "search_document", "passage"]


@refusing("embeddings")
class EmbeddingsBody(VectorBody, kw_only=True):
    input: Inputs
    dimensions: Annotated[int, Meta(ge=1, le=_MOST_DIMENSIONS)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    input_type: Role | None = None
    prompt_name: Annotated[str, Meta(max_length=_LONGEST_NAME)] | None = None


class EmbeddingItem(Struct):
    """Numbers, or their little-endian floats in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct):
    """What `_written` writes."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage


async def create_embeddings(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, EmbeddingsBody)
    check_supported(body, "embeddings")
    inputs = await beside_the_loop(len(body.input), parse_inputs, body.input, "input", MOST_INPUTS)
    call = ModelCall(http_request, body.model)
    request = submit(
        call,
        body,
        lambda request_id: Embed(
            request_id=request_id,
            inputs=tuple(inputs),
            prompt_name=body.prompt_name,
            role=_role(body.input_type),
            truncate=body.truncate_prompt_tokens,
            dimensions=body.dimensions,
        ),
        {"inputs": "input", "dimensions": "dimensions", "prompt_name": "prompt_name"},
    )

    def written(usage: Usage) -> Iterator[bytes]:
        return _written(
            request.vectors,
            len(inputs),
            call.model.id,
            usage,
            in_base64=body.encoding_format == "base64",
        )

    return VectorAnswer(call, request, written)


def _role(input_type: Role | None) -> Literal["query", "document"] | None:
    if input_type is None:
        return None
    return "query" if input_type in ("query", "search_query") else "document"


def _written(
    vectors: Vectors, number: int, model_id: str, usage: Usage, *, in_base64: bool
) -> Iterator[bytes]:
    """OpenAI's list, an item at a time."""
    numbers = struct.Struct(f"<{vectors.dimensions}f")
    assert numbers.size == vectors.dimensions * BYTES_PER_NUMBER
    yield b'{"object":"list","data":['
    for index in range(number):
        packed = vectors[index]
        value = (
            b'"' + base64.b64encode(packed) + b'"'
            if in_base64
            else msgspec.json.encode(numbers.unpack(packed))
        )
        comma = b"," if index else b""
        yield b'%b{"object":"embedding","index":%d,"embedding":%b}' % (comma, index, value)
    yield b'],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d}}' % (
        msgspec.json.encode(model_id),
        usage.prompt_tokens,
        usage.prompt_tokens,
    )


_EMBEDDINGS: Final = Operation(
    summary="Make vectors of texts",
    tag="OpenAI",
    body=EmbeddingsBody,
    answer=EmbeddingList,
    refusals=GENERATES,
)

routes = [Described("/v1/embeddings", create_embeddings, _EMBEDDINGS, method="POST")]
