"""POST /api/chat and /api/generate."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.config.model import Model
from gateway.http.bodies import read_json
from gateway.http.chat import tools as chat_tools
from gateway.http.chat.template import thinks
from gateway.http.framing import LINES
from gateway.http.left_out import left_out_header
from gateway.http.model_call import ModelCall
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
from gateway.http.ollama.loads import load
from gateway.http.ollama.names import call_of
from gateway.http.ollama.options import generation
from gateway.http.ollama.writer import ChatAnswer, GenerateAnswer, OllamaFormat
from gateway.http.openapi.operation import GENERATES, LINE_STREAM, Described, Operation
from gateway.http.sampling import GenerationBody, generate_message
from gateway.http.supported import check_supported
from gateway.system.refusal import Refusal
from protocol.prompts import ChatMessage, ChatPrompt, Prompt, TextPrompt
from protocol.requests import Generate, Tools


async def chat(http_request: HttpRequest) -> Response:
    body = await read_json(http_request, ChatBody)
    call = call_of(http_request, body.model)
    if not body.messages:
        return load(call, body, chat=True)
    find = functools.partial(message_sources, body.messages, looks=call.looks)
    pictures = await call.read_pictures(await call.beside_the_loop(find))
    asked = generation(body.options, call.model, body.keep_alive)
    message = await call.beside_the_loop(_chat_generate, body, asked, call.model, pictures)
    unseen = not call.looks and any(each.images for each in body.messages)
    return _answer(call, body, asked, message, left_out_header({"image"} if unseen else ()))


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
    body: ChatBody | GenerateBody,
    asked: GenerationBody,
    message: Generate,
    headers: Mapping[str, str] | None = None,
) -> Response:
    chats = isinstance(body, ChatBody)
    requests = call.requests(asked, [message], "messages" if chats else "prompt")
    form = OllamaFormat(body.model, requests[0], chat=chats)
    stream = body.stream is not False
    return call.answer(requests, form, stream=stream, framing=LINES, headers=headers)


def _chat_generate(
    body: ChatBody, asked: GenerationBody, model: Model, pictures: Sequence[bytes]
) -> Generate:
    messages = chat_messages(body.messages or (), pictures, looks=model.settings.pictures)
    tools = [chat_tools.ToolBody(each.function, each.type) for each in body.tools or ()]
    return _generate(
        body,
        asked,
        ChatPrompt(messages, _told(body, model)),
        parsed=True,
        tools=chat_tools.tools_of(tools, None, parallel=True),
    )


def _told(body: AnswerBody, model: Model) -> str:
    arguments = template_arguments(body.think, model.settings.template_arguments)
    return msgspec.json.encode(arguments).decode() if arguments else ""


def _prompt(body: GenerateBody, model: Model, pictures: Sequence[bytes]) -> Prompt:
    """A conversation of one message, unless it is raw or has something behind it."""
    text = body.prompt or ""
    if not body.raw and not body.suffix:
        messages = [ChatMessage("system", body.system)] if body.system else []
        messages.append(ChatMessage("user", text, pictures=shown(pictures, "")))
        return ChatPrompt(tuple(messages), _told(body, model))
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
