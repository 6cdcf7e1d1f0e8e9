"""Ollama's routes that generate text or make vectors (chat, generate, embed, embeddings), the route
pull, and the routes that are always refused.
"""

from __future__ import annotations

import asyncio
import functools
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.config.model import Model
from gateway.http.generation.generation import (
    GenerationBody,
    counting,
    generate_message,
    thinks,
    with_system,
)
from gateway.http.generation.model_call import ModelCall, keep_alive_s
from gateway.http.generation.parameters import check_supported
from gateway.http.generation.prefill import goes_on
from gateway.http.generation.tools import ToolBody, replaced, tools_of
from gateway.http.ollama.bodies import (
    AnswerBody,
    GenerateBody,
    OllamaChatBody,
    arguments_of,
    call_of,
    chat_messages,
    constraint_of,
    generation,
    message_sources,
    picture_sources,
    shown,
)
from gateway.http.ollama.models import model_routes
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
from gateway.http.openai.vectors import MOST_INPUTS, VectorAnswer, VectorBody, submit
from gateway.http.passing.servers import passing_to_bulkheads
from gateway.http.wire.answer import LINES, CountFormat
from gateway.http.wire.bodies import ABSENT, beside_the_loop, given, json_response, read_json
from gateway.http.wire.errors import invalid
from gateway.http.wire.openapi import GENERATES, LINE_STREAM, NAMES_MODEL, Operation, Routes
from gateway.requests.progress import Vectors
from gateway.requests.request import Request
from gateway.system.refusal import Refusal
from protocol.answers import Usage
from protocol.requests import (
    ChatMessage,
    ChatPrompt,
    Embed,
    Generate,
    Prompt,
    TextPrompt,
    Tools,
)

routes = Routes("Ollama")
routes += model_routes


def load(call: ModelCall, body: AnswerBody, *, chat: bool) -> Response:
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

    if unload and call.compartment.over:
        return Response(done(), media_type="application/json")
    generation = GenerationBody(model=call.model.id, keep_alive=body.keep_alive)
    nothing = counting(generate_message(generation, TextPrompt("Hello"), generation.limit))
    requests = call.requests(generation, [nothing], "prompt")
    streams = body.stream is not False
    return call.answer(requests, CountFormat(done), stream=streams, framing=LINES)


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
        return load(call, body, chat=True)
    find = functools.partial(message_sources, body.messages, vision=call.vision)
    pictures = await call.read_pictures(await call.beside_the_loop(find))
    asked = generation(body.options, call.model, body.keep_alive)
    message = await call.beside_the_loop(_chat_generate, body, asked, call.model, pictures)
    left_out = replaced(each.function.name for each in body.tools or ())
    if not call.vision and any(each.images for each in body.messages):
        left_out.add("image")
    return _answer(call, body, asked, message, left_out)


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
        return load(call, body, chat=False)
    pictures = await call.read_pictures(list(picture_sources(body.images, "")))
    asked = generation(body.options, call.model, body.keep_alive)
    told = _prompt(body, call.model, pictures)
    message = _generate(body, asked, told, parsed=isinstance(told, ChatPrompt))
    return _answer(call, body, asked, message)


def _answer(
    call: ModelCall,
    body: OllamaChatBody | GenerateBody,
    asked: GenerationBody,
    message: Generate,
    left_out: Collection[str] = (),
) -> Response:
    chats = isinstance(body, OllamaChatBody)
    requests = call.requests(asked, [message], "messages" if chats else "prompt")
    form = OllamaFormat(body.model, requests[0], chat=chats)
    stream = body.stream is not False
    return call.answer(requests, form, stream=stream, framing=LINES, left_out=left_out)


def _chat_generate(
    body: OllamaChatBody, asked: GenerationBody, model: Model, pictures: Sequence[bytes]
) -> Generate:
    messages = chat_messages(body.messages or (), pictures, vision=model.settings.pictures)
    tools = [ToolBody(each.function, each.type) for each in body.tools or ()]
    return _generate(
        body,
        asked,
        ChatPrompt(
            with_system(messages, model.settings),
            arguments_of(body.think, model.settings.template_arguments),
            goes_on(messages, "messages"),
        ),
        parsed=True,
        tools=tools_of(tools, None, parallel=True),
    )


def _prompt(body: GenerateBody, model: Model, pictures: Sequence[bytes]) -> Prompt:
    """The prompt: a text if the body has `raw` or `suffix`, else a conversation of one message."""
    text = body.prompt or ""
    if not body.raw and not body.suffix:
        messages = [ChatMessage("system", body.system)] if body.system else []
        messages.append(ChatMessage("user", text, pictures=shown(pictures, "")))
        arguments = arguments_of(body.think, model.settings.template_arguments)
        return ChatPrompt(with_system(messages, model.settings), arguments)
    if pictures:
        raise invalid("images: they can't be combined with raw or suffix.", "images")
    return TextPrompt(text, body.suffix or None)


def _generate(
    body: AnswerBody,
    asked: GenerationBody,
    prompt: Prompt,
    *,
    parsed: bool,
    tools: Tools | None = None,
) -> Generate:
    told = prompt.template_arguments if isinstance(prompt, ChatPrompt) else ""
    return msgspec.structs.replace(
        generate_message(asked, prompt, asked.limit),
        parsed=parsed,
        tools=tools,
        constraint=constraint_of(body),
        logprobs=body.top_logprobs or 0 if body.logprobs else None,
        thinks=thinks(told),
    )


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
    request = submit(call, body, embed, {"inputs": "input", "dimensions": "dimensions"})
    return VectorAnswer(call, request, lambda usage: written(request, usage))


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


_REFUSED: Final = Operation("Refused, with advice")


class PullBody(Struct):
    """Older clients send `name` instead of `model`."""

    model: str | None = None
    name: str | None = None


class Pulled(Struct):
    status: str = "success"


@routes.post(
    "/api/pull",
    Operation(
        "Done for a model that is here, else refused",
        body=PullBody,
        answer=Pulled,
        refusals=NAMES_MODEL,
    ),
)
async def pull(request: HttpRequest) -> Response:
    """Succeed if the model is served here, since Codex always asks for a pull. Otherwise refuse."""
    body = await read_json(request, PullBody)
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
