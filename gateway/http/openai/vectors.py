"""/v1/embeddings and /v1/rerank, and the answer with vectors, which Ollama's routes use, too."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Callable, Iterator
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.http.generation.generation_body import Priority
from gateway.http.generation.model_call import ModelCall, check_mailbox
from gateway.http.generation.supported_parameters import check_supported, refusing
from gateway.http.openai.completions import Inputs, count_strings, parse_inputs
from gateway.http.passing.pass_on import passing
from gateway.http.wire.access_log import unique
from gateway.http.wire.answer import Reply
from gateway.http.wire.bodies import BodyPart, beside_the_loop, read_json
from gateway.http.wire.errors import error_response, invalid
from gateway.http.wire.openapi import GENERATES, Operation, Routes
from gateway.models.model_supervisor import ModelSupervisor
from gateway.requests.progress import BYTES_PER_NUMBER, Vectors
from gateway.requests.request import Request
from gateway.system.refusal import Refusal
from protocol.answers import RequestField, Usage
from protocol.requests import Embed, TextPrompt

routes = Routes("OpenAI")

# The most texts of a request, which is OpenAI's bound.
MOST_INPUTS: Final = 2048
_LARGEST_COUNT: Final = (1 << 31) - 1
# A large answer is sent in pieces of this size; between two pieces other tasks can run.
_WRITTEN_BYTES: Final = 64 << 10

Truncate = Annotated[int, Meta(ge=-1, le=_LARGEST_COUNT)]


class VectorBody(Struct, kw_only=True):
    """The fields that embeddings and rerank share."""

    model: str
    truncate_prompt_tokens: Truncate | None = None
    priority: Priority | None = None
    keep_alive: float | str | None = None


def answer_with_vectors(
    call: ModelCall,
    body: VectorBody,
    embed: Embed,
    params: dict[RequestField, str],
    written: Callable[[Request, Usage], Iterator[bytes]],
) -> Response:
    """Put a request into the model's queue, and return the response that writes its vectors.

    `embed` is the message for a worker, without an id; `params` maps fields of this message to the
    body's names for them. `written` makes the pieces of the JSON once the vectors are complete.

    Raises:
        Refusal: a header or keep_alive can't be read, the limits of the key don't allow the
            request now, or the queue is full.
    """
    check_mailbox(call.http)
    params = {**params, "truncate": "truncate_prompt_tokens"}
    terms = call.terms(body.priority, body.keep_alive, params)
    task = msgspec.structs.replace(embed, request_id=unique(terms.id))
    request = Request(task, terms, call.fleet.now())
    call.count([request])
    call.fleet.submit(call.supervisor, request)
    return VectorAnswer(call.supervisor, request, written)


class VectorAnswer(Reply):
    """Writes the JSON answer to a request for vectors or scores, in pieces."""

    def __init__(
        self,
        supervisor: ModelSupervisor,
        request: Request,
        written: Callable[[Request, Usage], Iterator[bytes]],
    ) -> None:
        super().__init__(supervisor, [request])
        self._request = request
        self._written = written

    @property
    def usage(self) -> Usage | None:
        return self._request.spent

    async def write(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._write(await self._until_over(), send)
        except Refusal as refusal:
            await error_response(refusal, scope["path"])(scope, receive, send)

    async def _until_over(self) -> Usage:
        while True:
            piece = await self._request.next_piece()
            if piece.usage is not None:
                return piece.usage

    async def _write(self, usage: Usage, send: Send) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        unsent = bytearray()
        for piece in self._written(self._request, usage):
            unsent += piece
            if len(unsent) >= _WRITTEN_BYTES:
                await send({"type": "http.response.body", "body": bytes(unsent), "more_body": True})
                unsent.clear()
                # While the client reads fast enough, `send` gives other tasks no turn.
                await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": bytes(unsent), "more_body": False})


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
    """The numbers, or their little-endian float32 values in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class PromptUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct):
    """The answer that `_written_vectors` writes."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: PromptUsage


@routes.post(
    "/v1/embeddings",
    Operation(
        "Make vectors of texts", body=EmbeddingsBody, answer=EmbeddingList, refusals=GENERATES
    ),
)
@passing
async def create_embeddings(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, EmbeddingsBody)
    check_supported(body, "embeddings")
    inputs = await beside_the_loop(len(body.input), parse_inputs, body.input, "input", MOST_INPUTS)
    call = ModelCall(http_request, body.model)
    embed = Embed(
        request_id="",
        inputs=tuple(inputs),
        prompt_name=body.prompt_name,
        role=_role(body.input_type),
        truncate=body.truncate_prompt_tokens,
        dimensions=body.dimensions,
    )
    params: dict[RequestField, str] = {
        "inputs": "input",
        "dimensions": "dimensions",
        "prompt_name": "prompt_name",
    }
    in_base64 = body.encoding_format == "base64"

    def written(request: Request, usage: Usage) -> Iterator[bytes]:
        vectors = request.vectors
        return _written_vectors(vectors, len(inputs), call.model.id, usage, in_base64=in_base64)

    return answer_with_vectors(call, body, embed, params, written)


def _role(input_type: Role | None) -> Literal["query", "document"] | None:
    if input_type is None:
        return None
    return "query" if input_type in ("query", "search_query") else "document"


def _written_vectors(
    vectors: Vectors, number: int, model_id: str, usage: Usage, *, in_base64: bool
) -> Iterator[bytes]:
    """The pieces of OpenAI's list of vectors."""
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


# The most strings in all documents, counted before the documents are decoded. A document that is
# an object has at least two strings.
_MOST_STRINGS: Final = 32 * MOST_INPUTS
_LONGEST_REASON: Final = 200


_DOCUMENT: Final = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
}
_DOCUMENTS: Final = {
    "type": "array",
    "minItems": 1,
    "maxItems": MOST_INPUTS,
    "items": {"anyOf": [{"type": "string"}, _DOCUMENT]},
}


class RerankDocument(BodyPart):
    text: str


@refusing("rerank")
class RerankBody(VectorBody, kw_only=True):
    query: str
    documents: Annotated[Raw, Meta(extra_json_schema=_DOCUMENTS)]
    top_n: Annotated[int, Meta(ge=0)] | None = None
    return_documents: bool | None = None


# The bounds are part of the type, so that an error of msgspec names the bound.
Documents = Annotated[list[str | RerankDocument], Meta(min_length=1, max_length=MOST_INPUTS)]


class Result(Struct):
    index: int
    relevance_score: float
    document: RerankDocument | UnsetType = UNSET


class RerankAnswer(Struct):
    """The answer that `_written_scores` writes."""

    id: str
    model: str
    usage: PromptUsage
    results: list[Result]


@routes.post(
    "/v1/rerank",
    Operation(
        "Order documents by a query", body=RerankBody, answer=RerankAnswer, refusals=GENERATES
    ),
)
@passing
async def rerank(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, RerankBody)
    check_supported(body, "rerank")
    texts = await beside_the_loop(len(body.documents), _texts, body.documents)
    call = ModelCall(http_request, body.model)
    embed = Embed(
        request_id="",
        inputs=tuple(map(TextPrompt, texts)),
        query=body.query,
        truncate=body.truncate_prompt_tokens,
    )
    documents = texts if body.return_documents is not False else None

    def written(request: Request, usage: Usage) -> Iterator[bytes]:
        results = _results(request.vectors, len(texts), body.top_n, documents)
        return _written_scores(results, request.id, call.model.id, usage)

    return answer_with_vectors(call, body, embed, {"inputs": "documents"}, written)


def _texts(raw: Raw) -> list[str]:
    """Raises: Refusal: the field is no list of documents, or has too many documents."""
    strings = count_strings(bytes(raw), _MOST_STRINGS)
    try:
        if strings > _MOST_STRINGS:
            raise msgspec.ValidationError(f"Expected `array` of length <= {MOST_INPUTS}")
        documents = msgspec.json.decode(raw, type=Documents)
    except msgspec.DecodeError as error:
        raise invalid(
            f"documents: send a list of at most {MOST_INPUTS:,} texts, or objects with a text; "
            f"{str(error)[:_LONGEST_REASON]}.",
            "documents",
        ) from error
    return [document if isinstance(document, str) else document.text for document in documents]


def _results(
    scores: Vectors, number: int, top_n: int | None, documents: list[str] | None
) -> Iterator[Result]:
    """The results, best first. Equal scores keep the order of their documents. Without `top_n`, or
    if it is 0, all results come, as in vLLM.
    """
    packed = struct.unpack(f"<{number}f", scores.data)
    best = sorted(range(number), key=lambda index: -packed[index])
    for index in best[: top_n or None]:
        document = UNSET if documents is None else RerankDocument(documents[index])
        yield Result(index, packed[index], document)


def _written_scores(
    results: Iterator[Result], request_id: str, model_id: str, usage: Usage
) -> Iterator[bytes]:
    yield b'{"id":%b,"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d},"results":[' % (
        msgspec.json.encode(f"rerank-{request_id}"),
        msgspec.json.encode(model_id),
        usage.prompt_tokens,
        usage.prompt_tokens,
    )
    for place, result in enumerate(results):
        yield (b"," if place else b"") + msgspec.json.encode(result)
    yield b"]}"
