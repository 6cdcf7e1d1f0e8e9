"""Ollama's routes that generate text or make vectors (chat, generate, embed, embeddings), the route
pull, and the routes that are always refused.
"""

from __future__ import annotations

import asyncio
import functools
import struct
from collections.abc import Callable, Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.access.caller import NeededKey
from gateway.config.model import Model
from gateway.http.generation.conversation import ConversationBuilder
from gateway.http.generation.generation_body import (
    GenerationBody,
    generate_message,
)
from gateway.http.generation.model_call import ModelCall, keep_alive_s
from gateway.http.generation.supported_parameters import check_supported
from gateway.http.generation.text_request import (
    RequestDraft,
    TextRequest,
    counting,
    draft_chat,
    request_text,
)
from gateway.http.generation.tools import ToolBody, replaced, tools_of
from gateway.http.ollama.bodies import (
    AnswerBody,
    GenerateBody,
    OllamaChatBody,
    arguments_of,
    call_of,
    constraint_of,
    converse,
    generation,
    sources,
)
from gateway.http.ollama.models import NamedModelBody, model_routes
from gateway.http.ollama.writer import (
    ChatAnswer,
    Figures,
    GenerateAnswer,
    OllamaContent,
    OllamaFormat,
    nanoseconds,
    written,
)
from gateway.http.openai.completions import Input, parse_inputs
from gateway.http.openai.vectors import MOST_INPUTS, VectorBody, answer_with_vectors
from gateway.http.passing.pass_on import passing_to_bulkheads
from gateway.http.wire.answer import LINES, CountFormat
from gateway.http.wire.bodies import ABSENT, beside_the_loop, given, json_response, read_json
from gateway.http.wire.errors import invalid
from gateway.http.wire.openapi import GENERATES, LINE_STREAM, NAMES_MODEL, Operation, Routes
from gateway.requests.progress import Vectors
from gateway.requests.request import Request
from gateway.system.refusal import Refusal
from protocol.answers import RequestField, Usage
from protocol.requests import (
    Embed,
    TextPrompt,
    Tools,
)

routes = Routes("Ollama")
routes += model_routes


async def load(call: ModelCall, body: AnswerBody, *, chat: bool) -> Response:
    """Load the model, or unload it if keep_alive is 0, as Ollama does for a body without a prompt.
    The answer says whether this was a load or an unload. A load, and the unload of a loaded model,
    waits in the queue as a request that computes nothing.

    Raises:
        Refusal: keep_alive can't be read, or the caller may not unload.
    """
    unload = keep_alive_s(body.keep_alive) == 0
    if unload and not call.caller.admin:
        raise Refusal(
            "permission_denied",
            "Only the admin key may unload a model, since other clients may be using it. The "
            "gateway unloads it after its ttl_s, or when another model needs the memory.",
            param="keep_alive",
        )

    def done(usage: Usage | None = None) -> bytes:
        figures = Figures(done_reason="unload" if unload else "load")
        return written(body.model, OllamaContent(), figures, chat=chat)

    if unload and call.supervisor.over:
        return Response(done(), media_type="application/json")
    parameters = GenerationBody(model=call.model.id, keep_alive=body.keep_alive)
    nothing = RequestDraft(parameters, [generate_message(parameters, TextPrompt("Hello"), None)])
    asked = await request_text(call, lambda _: counting(nothing), "prompt")
    return asked.submit(CountFormat(done), stream=body.stream is not False, framing=LINES)


@routes.post(
    "/api/chat",
    Operation(
        "Answer a conversation, or load a model",
        body=OllamaChatBody,
        answer=ChatAnswer,
        events=ChatAnswer,
        stream=LINE_STREAM,
        refusals=GENERATES,
    ),
)
@passing_to_bulkheads(streams=True)
async def chat(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, OllamaChatBody)
    call = call_of(http_request, body.model)
    if not body.messages:
        return await load(call, body, chat=True)
    asked = await request_text(call, functools.partial(_draft_chat, body), "messages")
    return _answer(asked, body)


@routes.post(
    "/api/generate",
    Operation(
        "Answer a prompt, or load a model",
        body=GenerateBody,
        answer=GenerateAnswer,
        events=GenerateAnswer,
        stream=LINE_STREAM,
        refusals=GENERATES,
    ),
)
@passing_to_bulkheads(streams=True)
async def generate(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, GenerateBody)
    check_supported(body, "generate")
    call = call_of(http_request, body.model)
    if not body.prompt and not body.images:
        return await load(call, body, chat=False)
    asked = await request_text(call, functools.partial(_draft_prompt, body), "prompt")
    return _answer(asked, body)


def _answer(asked: TextRequest, body: OllamaChatBody | GenerateBody) -> Response:
    chats = isinstance(body, OllamaChatBody)
    form = OllamaFormat(body.model, asked.requests[0], chat=chats)
    return asked.submit(form, stream=body.stream is not False, framing=LINES)


def _draft_chat(body: OllamaChatBody, model: Model) -> RequestDraft:
    conversation = ConversationBuilder(vision=model.settings.pictures)
    converse(body.messages or (), conversation)
    goes_on = conversation.goes_on("messages")
    tools = [ToolBody(tool.function, tool.type) for tool in body.tools or ()]
    conversation.left_out |= replaced(tool.function.name for tool in tools)
    return _draft(
        body, model, conversation, goes_on=goes_on, tools=tools_of(tools, None, parallel=True)
    )


def _draft_prompt(body: GenerateBody, model: Model) -> RequestDraft:
    """The prompt is a text with `raw` or `suffix`, else a conversation of one message."""
    if body.raw or body.suffix:
        if body.images:
            raise invalid("images: they can't be combined with raw or suffix.", "images")
        text = TextPrompt(body.prompt or "", body.suffix or None)
        parameters = generation(body.options, model, body.keep_alive)
        generate = msgspec.structs.replace(
            generate_message(parameters, text, parameters.limit),
            constraint=constraint_of(body),
            logprobs=_logprobs(body),
        )
        return RequestDraft(parameters, [generate])
    conversation = ConversationBuilder(vision=model.settings.pictures)
    if body.system:
        conversation.add("system", body.system)
    message = conversation.text("user", separator="\n")
    for source in sources(body.images, ""):
        message.show(source)
    message.add(body.prompt or "")
    conversation.add("user", message)
    return _draft(body, model, conversation)


def _draft(
    body: AnswerBody,
    model: Model,
    conversation: ConversationBuilder,
    *,
    goes_on: bool = False,
    tools: Tools | None = None,
) -> RequestDraft:
    conversation.begin_with(model.settings.system)
    arguments = arguments_of(body.think, model.settings.template_arguments)
    parameters = generation(body.options, model, body.keep_alive)
    return draft_chat(
        parameters,
        conversation,
        arguments,
        parameters.limit,
        goes_on=goes_on,
        tools=tools,
        constraint=constraint_of(body),
        logprobs=_logprobs(body),
    )


def _logprobs(body: AnswerBody) -> int | None:
    return body.top_logprobs or 0 if body.logprobs else None


_MOST_DIMENSIONS: Final = 1 << 16
# The value of `truncate` that cuts texts to the context. The client may want an error instead.
_CONTEXT: Final = -1

Texts = Annotated[
    Raw,
    Meta(
        extra_json_schema={
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
        }
    ),
]
# Makes the pieces of an answer once the vectors are complete.
Written = Callable[[Request, Usage], Iterator[bytes]]


class EmbedBody(VectorBody, kw_only=True):
    """`options` are ignored."""

    input: Texts = ABSENT
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=1, le=_MOST_DIMENSIONS)] | None = None


class OllamaEmbeddingsBody(VectorBody, kw_only=True):
    """The body of the older route, for one text."""

    prompt: str = ""


class EmbedAnswer(msgspec.Struct):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddingsAnswer(msgspec.Struct):
    embedding: list[float]


@routes.post(
    "/api/embed",
    Operation("Make vectors of texts", body=EmbedBody, answer=EmbedAnswer, refusals=GENERATES),
)
@passing_to_bulkheads(streams=False)
async def embed(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, EmbedBody)
    name = body.model
    text = bytes(body.input).strip()
    if not given(body.input) or text == b'""' or text.translate(None, b" \t\r\n") == b"[]":
        # Ollama gives the same empty answer, if the model exists.
        call_of(http_request, name)
        return json_response(EmbedAnswer(name, [], 0, 0, 0))
    inputs = await beside_the_loop(len(body.input), parse_inputs, body.input, "input", MOST_INPUTS)

    def written(request: Request, usage: Usage) -> Iterator[bytes]:
        yield b'{"model":%b,"embeddings":[' % msgspec.json.encode(name)
        for index in range(len(inputs)):
            yield (b"," if index else b"") + _numbers(request.vectors, index)
        now = asyncio.get_running_loop().time()
        yield b'],"total_duration":%d,"load_duration":%d,"prompt_eval_count":%d}' % (
            nanoseconds(now - request.arrived_at),
            nanoseconds((request.begun_at or now) - request.arrived_at),
            usage.prompt_tokens,
        )

    truncate = None if body.truncate is False else _CONTEXT
    return _submit_texts(http_request, body, inputs, written, truncate, body.dimensions)


@routes.post(
    "/api/embeddings",
    Operation(
        "Make a vector of a text",
        body=OllamaEmbeddingsBody,
        answer=EmbeddingsAnswer,
        refusals=GENERATES,
    ),
)
@passing_to_bulkheads(streams=False)
async def embeddings(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, OllamaEmbeddingsBody)
    if not body.prompt:
        call_of(http_request, body.model)
        return json_response(EmbeddingsAnswer([]))

    def written(request: Request, usage: Usage) -> Iterator[bytes]:
        yield b'{"embedding":%b}' % _numbers(request.vectors, 0)

    return _submit_texts(http_request, body, [TextPrompt(body.prompt)], written, _CONTEXT)


def _submit_texts(
    http_request: HttpRequest,
    body: VectorBody,
    inputs: list[Input],
    written: Written,
    truncate: int | None,
    dimensions: int | None = None,
) -> Response:
    call = call_of(http_request, body.model)
    embed = Embed(request_id="", inputs=tuple(inputs), truncate=truncate, dimensions=dimensions)
    params: dict[RequestField, str] = {"inputs": "input", "dimensions": "dimensions"}
    return answer_with_vectors(call, body, embed, params, written)


def _numbers(vectors: Vectors, index: int) -> bytes:
    return msgspec.json.encode(struct.unpack(f"<{vectors.dimensions}f", vectors[index]))


_ADVICE: Final = {
    "/api/pull": "download it with `bulkhead pull MODEL`",
    "/api/push": "models are not uploaded from here",
    "/api/create": "name the folder, an adapter or other options in the configuration; "
    "`bulkhead pull MODEL` downloads a model",
    "/api/copy": "give the model another name by `aliases` in the configuration; "
    "`bulkhead pull MODEL` downloads a model",
    "/api/delete": "remove it with `bulkhead rm MODEL`; `bulkhead pull MODEL` downloads it again",
}


_REFUSED: Final = Operation("Refused, with advice", key=NeededKey.ADMIN)


class Pulled(Struct):
    status: str = "success"


@routes.post(
    "/api/pull",
    Operation(
        "Done for a model that is here, else refused",
        body=NamedModelBody,
        answer=Pulled,
        refusals=NAMES_MODEL,
        key=NeededKey.ADMIN,
    ),
)
async def pull(request: HttpRequest) -> Response:
    """Succeed if the model is served here, since Codex always asks for a pull. Otherwise refuse."""
    body = await read_json(request, NamedModelBody)
    try:
        call_of(request, body.model or body.name)
    except Refusal:
        return await elsewhere(request)
    return Response(msgspec.json.encode(Pulled()) + b"\n", media_type=LINES.media_type.decode())


@routes.post("/api/push", _REFUSED)
@routes.post("/api/create", _REFUSED)
@routes.post("/api/copy", _REFUSED)
@routes.delete("/api/delete", _REFUSED)
async def elsewhere(request: HttpRequest) -> Response:
    path = request.url.path
    raise Refusal("invalid_request_error", f"{path} is not supported by Bulkhead: {_ADVICE[path]}.")
