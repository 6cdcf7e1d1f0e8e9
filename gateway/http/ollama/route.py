"""POST /api/chat and /api/generate."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.answer import Answer
from gateway.http.bodies import beside_the_loop, read_json
from gateway.http.chat import tools as chat_tools
from gateway.http.chat.template import thinks
from gateway.http.framing import LINES
from gateway.http.left_out import left_out_header
from gateway.http.ollama.bodies import (
    AnswerBody,
    ChatBody,
    GenerateBody,
    chat_messages,
    constraint_of,
    message_sources,
    picture_sources,
    shown,
    template_arguments,
)
from gateway.http.ollama.loads import Load
from gateway.http.ollama.names import find_model
from gateway.http.ollama.options import generation
from gateway.http.ollama.writer import ChatAnswer, GenerateAnswer, OllamaFormat
from gateway.http.openapi.operation import GENERATES, LINE_STREAM, Described, Operation
from gateway.http.pictures.reader import PictureReader, check_pictures
from gateway.http.pictures.source import Source
from gateway.http.sampling import GenerationBody, generate_message, new_requests
from gateway.http.supported import check_supported
from gateway.models.choices import submit_all
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet
from gateway.requests.share import share_of
from gateway.system.refusal import Refusal
from protocol.prompts import ChatMessage, ChatPrompt, Prompt, TextPrompt
from protocol.requests import Generate, Tools


async def chat(request: HttpRequest) -> Response:
    body = await read_json(request, ChatBody)
    compartment = find_model(request, body.model)
    if not body.messages:
        return await Load(request, compartment, body, chat=True).answer()
    body_bytes: int = request.state.body_bytes
    looks = compartment.model.settings.pictures
    find = functools.partial(message_sources, body.messages, looks=looks)
    sources = await beside_the_loop(body_bytes, find)
    pictures = await _read(request, compartment, sources)
    asked = generation(body.options, compartment.model, body.keep_alive)
    generate = await beside_the_loop(body_bytes, _chat_generate, body, asked, compartment, pictures)
    unseen = not looks and any(each.images for each in body.messages)
    left_out = left_out_header({"image"} if unseen else ())
    return _answer(request, compartment, body, asked, generate, left_out)


async def generate(request: HttpRequest) -> Response:
    body = await read_json(request, GenerateBody)
    check_supported(body, "generate")
    compartment = find_model(request, body.model)
    if not body.prompt and not body.images:
        return await Load(request, compartment, body, chat=False).answer()
    sources = list(picture_sources(body.images, ""))
    pictures = await _read(request, compartment, sources)
    asked = generation(body.options, compartment.model, body.keep_alive)
    told = _prompt(body, compartment, pictures)
    message = _generate(body, asked, told, parsed=isinstance(told, ChatPrompt))
    return _answer(request, compartment, body, asked, message)


async def _read(
    request: HttpRequest, compartment: Compartment, sources: Sequence[Source]
) -> list[bytes]:
    check_pictures(sources, compartment.model)
    reader: PictureReader = request.app.state.pictures
    fleet: Fleet = request.app.state.fleet
    return await reader.read(sources, fleet.settings.gateway, share_of(request.scope))


def _answer(
    request: HttpRequest,
    compartment: Compartment,
    body: ChatBody | GenerateBody,
    asked: GenerationBody,
    message: Generate,
    headers: Mapping[str, str] | None = None,
) -> Response:
    fleet: Fleet = request.app.state.fleet
    chats = isinstance(body, ChatBody)
    requests = new_requests(request, fleet, asked, [message], "messages" if chats else "prompt")
    submit_all(fleet, compartment, requests)
    form = OllamaFormat(body.model, requests[0], chat=chats)
    stream = body.stream is not False
    return Answer(compartment, requests, form, stream=stream, framing=LINES, headers=headers)


def _chat_generate(
    body: ChatBody,
    asked: GenerationBody,
    compartment: Compartment,
    pictures: Sequence[bytes],
) -> Generate:
    looks = compartment.model.settings.pictures
    messages = chat_messages(body.messages or (), pictures, looks=looks)
    tools = [chat_tools.ToolBody(each.function, each.type) for each in body.tools or ()]
    return _generate(
        body,
        asked,
        ChatPrompt(messages, _told(body, compartment)),
        parsed=True,
        tools=chat_tools.tools_of(tools, None, parallel=True),
    )


def _told(body: AnswerBody, compartment: Compartment) -> str:
    arguments = template_arguments(body.think, compartment.model.settings.template_arguments)
    return msgspec.json.encode(arguments).decode() if arguments else ""


def _prompt(body: GenerateBody, compartment: Compartment, pictures: Sequence[bytes]) -> Prompt:
    """A conversation of one message, unless it is raw or has something behind it."""
    text = body.prompt or ""
    if not body.raw and not body.suffix:
        messages = [ChatMessage("system", body.system)] if body.system else []
        messages.append(ChatMessage("user", text, pictures=shown(pictures, "")))
        return ChatPrompt(tuple(messages), _told(body, compartment))
    if pictures:
        raise Refusal(
            "invalid_request_error",
            "images: they can't be combined with raw or suffix.",
            param="images",
        )
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


_CHAT: Final = Operation(
    summary="Answer a conversation, or load a model",
    tag="Ollama",
    body=ChatBody,
    answer=ChatAnswer,
    events=ChatAnswer,
    stream=LINE_STREAM,
    refusals=GENERATES,
)
_GENERATE: Final = Operation(
    summary="Answer a prompt, or load a model",
    tag="Ollama",
    body=GenerateBody,
    answer=GenerateAnswer,
    events=GenerateAnswer,
    stream=LINE_STREAM,
    refusals=GENERATES,
)

routes = [
    Described("/api/chat", chat, _CHAT, method="POST"),
    Described("/api/generate", generate, _GENERATE, method="POST"),
]
