"""POST /api/embed and /api/embeddings."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.bodies import ABSENT, beside_the_loop, given, read_json
from gateway.http.inputs import Input, parse_inputs
from gateway.http.ollama.names import call_of
from gateway.http.openapi.operation import GENERATES, Described, Operation
from gateway.http.vectors import MOST_INPUTS, VectorAnswer, VectorBody, submit
from gateway.requests.progress import Vectors
from gateway.requests.request import Request
from protocol.answers import Usage
from protocol.prompts import TextPrompt
from protocol.requests import Embed

_MOST_DIMENSIONS: Final = 1 << 16
_NS_PER_S: Final = 1_000_000_000
# What is beyond the context is cut off, unless the client wants an error.
_CONTEXT: Final = -1

Texts = Annotated[
    Raw,
    Meta(
        extra_json_schema={
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
        }
    ),
]
# How an answer is written, once its vectors are there.
Written = Callable[[Request, Usage], Iterator[bytes]]


class EmbedBody(VectorBody, kw_only=True):
    """`options` change nothing here."""

    input: Texts = ABSENT
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=1, le=_MOST_DIMENSIONS)] | None = None


class EmbeddingsBody(VectorBody, kw_only=True):
    """The older way, for one text."""

    prompt: str = ""


class EmbedAnswer(msgspec.Struct):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddingsAnswer(msgspec.Struct):
    embedding: list[float]


async def embed(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, EmbedBody)
    name = body.model
    text = bytes(body.input).strip()
    if not given(body.input) or text == b'""' or text.translate(None, b" \t\r\n") == b"[]":
        # As Ollama answers it.
        call_of(http_request, name)
        return Response(
            msgspec.json.encode(EmbedAnswer(name, [], 0, 0, 0)), media_type="application/json"
        )
    inputs = await beside_the_loop(len(body.input), parse_inputs, body.input, "input", MOST_INPUTS)

    def written(request: Request, usage: Usage) -> Iterator[bytes]:
        yield b'{"model":%b,"embeddings":[' % msgspec.json.encode(name)
        for index in range(len(inputs)):
            yield (b"," if index else b"") + _numbers(request.vectors, index)
        now = asyncio.get_running_loop().time()
        yield b'],"total_duration":%d,"load_duration":%d,"prompt_eval_count":%d}' % (
            _ns(now - request.arrived_at),
            _ns((request.begun_at or now) - request.arrived_at),
            usage.prompt_tokens,
        )

    truncate = None if body.truncate is False else _CONTEXT
    return _answer(http_request, body, inputs, written, truncate, body.dimensions)


async def embeddings(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, EmbeddingsBody)
    if not body.prompt:
        call_of(http_request, body.model)
        return Response(msgspec.json.encode(EmbeddingsAnswer([])), media_type="application/json")

    def written(request: Request, usage: Usage) -> Iterator[bytes]:
        yield b'{"embedding":%b}' % _numbers(request.vectors, 0)

    return _answer(http_request, body, [TextPrompt(body.prompt)], written, _CONTEXT)


def _answer(
    http_request: HttpRequest,
    body: VectorBody,
    inputs: list[Input],
    written: Written,
    truncate: int | None,
    dimensions: int | None = None,
) -> Response:
    call = call_of(http_request, body.model)
    request = submit(
        call,
        body,
        lambda request_id: Embed(
            request_id=request_id, inputs=tuple(inputs), truncate=truncate, dimensions=dimensions
        ),
        {"inputs": "input", "dimensions": "dimensions"},
    )
    return VectorAnswer(call, request, lambda usage: written(request, usage))


def _numbers(vectors: Vectors, index: int) -> bytes:
    return msgspec.json.encode(struct.unpack(f"<{vectors.dimensions}f", vectors[index]))


def _ns(seconds: float) -> int:
    return max(0, int(seconds * _NS_PER_S))


_EMBED: Final = Operation(
    summary="Make vectors of texts",
    tag="Ollama",
    body=EmbedBody,
    answer=EmbedAnswer,
    refusals=GENERATES,
)
_EMBEDDINGS: Final = Operation(
    summary="Make a vector of a text",
    tag="Ollama",
    body=EmbeddingsBody,
    answer=EmbeddingsAnswer,
    refusals=GENERATES,
)

routes = [
    Described("/api/embed", embed, _EMBED, method="POST"),
    Described("/api/embeddings", embeddings, _EMBEDDINGS, method="POST"),
]
