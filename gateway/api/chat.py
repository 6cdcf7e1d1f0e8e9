"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.answer import Answer, server_sent_event
from gateway.api.bodies import read_json
from gateway.api.sampling import (
    GenerationBody,
    Tokens,
    check_supported,
    new_request,
)
from gateway.api.usage import UsageBody
from gateway.dispatch.refusal import Refusal
from gateway.dispatch.request import Piece
from gateway.supervise.fleet import Fleet
from protocol.messages import ChatMessage, ChatPrompt, FinishReason, Usage


class ContentPart(Struct):
    type: str
    text: str | None = None


class MessageBody(Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    tool_calls: Any = None


class ChatBody(GenerationBody, kw_only=True):
    messages: Annotated[list[MessageBody], Meta(min_length=1)]
    max_completion_tokens: Tokens | None = None


class AnswerMessage(Struct):
    role: str
    content: str


class Choice(Struct):
    index: int
    message: AnswerMessage
    logprobs: None
    finish_reason: FinishReason


class ChatCompletion(Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: UsageBody


class ChunkDelta(Struct, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(Struct):
    index: int
    delta: ChunkDelta
    logprobs: None = None
    finish_reason: FinishReason | None = None


class Chunk(Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageBody | UnsetType | None


async def create_chat_completion(request: HttpRequest) -> Response:
    fleet: Fleet = request.app.state.fleet
    body = await read_json(request, ChatBody)
    check_supported(body)
    compartment = fleet.roster.find(body.model)
    prompt = ChatPrompt(tuple(_message(index, each) for index, each in enumerate(body.messages)))
    max_tokens = body.max_completion_tokens or body.max_tokens
    generation = new_request(request, fleet, body, prompt, max_tokens)
    fleet.submit(compartment, generation)
    form = ChatFormat(generation.id, compartment.model.id, include_usage=body.include_usage)
    return Answer(compartment, generation, form, stream=bool(body.stream))


def _message(index: int, body: MessageBody) -> ChatMessage:
    if body.tool_calls:
        raise Refusal(
            "invalid_request_error",
            "tool_calls are not supported: leave them out.",
            param=f"messages[{index}].tool_calls",
        )
    # Templates know the role by its older name.
    role = "system" if body.role == "developer" else body.role
    if not isinstance(body.content, list):
        return ChatMessage(role, body.content or "")
    for place, part in enumerate(body.content):
        if part.type != "text" or part.text is None:
            raise Refusal(
                "invalid_request_error",
                f"A content part of type {part.type!r}: only text parts are supported.",
                param=f"messages[{index}].content[{place}]",
            )
    return ChatMessage(role, "".join(part.text or "" for part in body.content))


class ChatFormat:
    """OpenAI's chat completion objects."""

    def __init__(self, request_id: str, model_id: str, *, include_usage: bool) -> None:
        self._id = f"chatcmpl-{request_id}"
        self._model_id = model_id
        self._created = int(time.time())
        self._include_usage = include_usage

    def opening(self) -> bytes:
        return self._event([ChunkChoice(0, ChunkDelta(role="assistant", content=""))])

    def piece(self, piece: Piece) -> bytes:
        events = b""
        if piece.text:
            events = self._event([ChunkChoice(0, ChunkDelta(content=piece.text))])
        if piece.finish_reason is not None:
            events += self._event([ChunkChoice(0, ChunkDelta(), None, piece.finish_reason)])
        return events

    def closing(self, usage: Usage) -> bytes:
        events = self._event([], UsageBody.of(usage)) if self._include_usage else b""
        return events + server_sent_event(b"[DONE]")

    def whole(self, text: str, finish_reason: FinishReason, usage: Usage) -> bytes:
        message = AnswerMessage("assistant", text)
        return msgspec.json.encode(
            ChatCompletion(
                self._id,
                "chat.completion",
                self._created,
                self._model_id,
                [Choice(0, message, None, finish_reason)],
                UsageBody.of(usage),
            )
        )

    def _event(self, choices: list[ChunkChoice], usage: UsageBody | None = None) -> bytes:
        return server_sent_event(
            msgspec.json.encode(
                Chunk(
                    self._id,
                    "chat.completion.chunk",
                    self._created,
                    self._model_id,
                    choices,
                    usage if self._include_usage else UNSET,
                )
            )
        )


routes = [Route("/v1/chat/completions", create_chat_completion, methods=["POST"])]
