"""POST /v1/rerank, as Jina's, Cohere's and vLLM's clients send it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.bodies import Part, beside_the_loop, read_json
from gateway.http.inputs import count_strings
from gateway.http.model_call import ModelCall
from gateway.http.openapi.operation import GENERATES, Described, Operation
from gateway.http.supported import check_supported, refusing
from gateway.http.vectors import MOST_INPUTS, VectorAnswer, VectorBody, submit
from gateway.requests.progress import Vectors
from gateway.system.refusal import Refusal
from protocol.answers import Usage
from protocol.prompts import TextPrompt
from protocol.requests import Embed

# Counted before they are decoded: an object has two, and clients may send some others.
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


class Document(Part):
    text: str


@refusing("rerank")
class RerankBody(VectorBody, kw_only=True):
    query: str
    documents: Annotated[Raw, Meta(extra_json_schema=_DOCUMENTS)]
    top_n: Annotated[int, Meta(ge=0)] | None = None
    return_documents: bool | None = None


# As a type of its own: what is wrong with it is named.
Documents = Annotated[list[str | Document], Meta(min_length=1, max_length=MOST_INPUTS)]


class Result(Struct):
    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class RerankUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class RerankAnswer(Struct):
    """What `_written` writes."""

    id: str
    model: str
    usage: RerankUsage
    results: list[Result]


async def rerank(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, RerankBody)
    check_supported(body, "rerank")
    texts = await beside_the_loop(len(body.documents), _texts, body.documents)
    call = ModelCall(http_request, body.model)
    request = submit(
        call,
        body,
        lambda request_id: Embed(
            request_id=request_id,
            inputs=tuple(map(TextPrompt, texts)),
            query=body.query,
            truncate=body.truncate_prompt_tokens,
        ),
        {"inputs": "documents"},
    )
    documents = texts if body.return_documents is not False else None

    def written(usage: Usage) -> Iterator[bytes]:
        results = _results(request.vectors, len(texts), body.top_n, documents)
        return _written(results, request.id, call.model.id, usage)

    return VectorAnswer(call, request, written)


def _texts(raw: Raw) -> list[str]:
    """Raises: Refusal: they are no documents, or too many."""
    strings = count_strings(bytes(raw), _MOST_STRINGS)
    try:
        if strings > _MOST_STRINGS:
            raise msgspec.ValidationError(f"Expected `array` of length <= {MOST_INPUTS}")
        documents = msgspec.json.decode(raw, type=Documents)
    except msgspec.DecodeError as error:
        raise Refusal(
            "invalid_request_error",
            f"documents: send a list of at most {MOST_INPUTS:,} texts, or objects with a text; "
            f"{str(error)[:_LONGEST_REASON]}.",
            param="documents",
        ) from error
    return [each if isinstance(each, str) else each.text for each in documents]


def _results(
    scores: Vectors, number: int, top_n: int | None, documents: list[str] | None
) -> Iterator[Result]:
    """The best first; of equal ones the first. No `top_n`, or 0, is all, as in vLLM."""
    packed = struct.unpack(f"<{number}f", scores.data)
    best = sorted(range(number), key=lambda index: -packed[index])
    for index in best[: top_n or None]:
        document = UNSET if documents is None else Document(documents[index])
        yield Result(index, packed[index], document)


def _written(
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


_RERANK: Final = Operation(
    summary="Order documents by a query",
    tag="OpenAI",
    body=RerankBody,
    answer=RerankAnswer,
    refusals=GENERATES,
)

routes = [Described("/v1/rerank", rerank, _RERANK, method="POST")]
